"""The state of the server, for those who watch it: the console, `relevo top`, anything that reads JSON."""
