"""Who enters, who waits, who is refused, and what each of them is told."""
