"""Measured figures as one page of Markdown: `relevo bench page`."""
