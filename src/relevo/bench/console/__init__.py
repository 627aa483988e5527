"""What it costs a gateway that many watch it."""
