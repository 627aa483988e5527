"""Requests that ended lately, and those that run: what became of each, and why it took as long as it did."""
