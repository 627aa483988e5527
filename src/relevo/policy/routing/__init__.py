"""Which worker, and which region, gets a request."""
