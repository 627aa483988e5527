"""How models write what is not plain text: calls of tools, and reasoning."""
