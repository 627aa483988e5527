"""What a request costs the client."""
