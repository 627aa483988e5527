"""One answer, whatever API asked for it: what is wanted, how it runs, what it consists of, what it is charged."""
