"""A report as one HTML page: tables, plots, how it was made, and its data. No script, and nothing from elsewhere."""
