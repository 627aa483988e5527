"""Answers that are kept for their clients: by id, for a time, each seen by its own tenant alone."""
