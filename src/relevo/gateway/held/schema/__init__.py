"""JSON schemas: their keywords, what they mean, and the grammar of the texts that they admit."""
