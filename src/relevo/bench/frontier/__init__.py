"""`relevo bench frontier`: tails of tokens against first tokens, by mode, chunk size and load."""
