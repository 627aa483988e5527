"""`relevo top`: a running server on a terminal, live."""
