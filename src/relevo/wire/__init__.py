"""Messages between gateway and workers, and the framing that carries them."""
