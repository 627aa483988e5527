"""Readers of measured tables: lines or parsed JSON in, rows and step-time models out. One module per source."""
