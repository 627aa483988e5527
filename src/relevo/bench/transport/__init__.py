"""`relevo bench transport`: KV transports without a model."""
