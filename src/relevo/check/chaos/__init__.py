"""Checks that disturb the processes behind the URL: kill, stop, abort, and look whether anything stayed behind."""
