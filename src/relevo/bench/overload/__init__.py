"""`relevo bench overload`: more than the server can serve."""
