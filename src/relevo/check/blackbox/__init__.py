"""Checks that need nothing but a URL. One module per group."""
