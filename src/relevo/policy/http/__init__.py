"""Bounds of connections, bytes and log lines."""
