"""`relevo bench serve`: a load test."""
