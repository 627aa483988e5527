"""`relevo bench gateway`: what the gateway costs."""
