"""Decisions of a cluster of machines."""
