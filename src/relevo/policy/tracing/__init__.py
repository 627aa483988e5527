"""Distributed traces: what is continued of a client's, and which spans a request becomes once it has ended."""
