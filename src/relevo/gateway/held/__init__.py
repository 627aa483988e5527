"""Held output: from what an answer must be to the grammar that holds a model to it."""
