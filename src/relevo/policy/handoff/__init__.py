"""One request between workers: what to ask of which worker, and what to do when one fails."""
