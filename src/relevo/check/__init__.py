"""Conformance and chaos as a product: checks that any OpenAI-compatible server can be held against."""
