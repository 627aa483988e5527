"""Clients of OpenAI-compatible servers: what load generators and people at a terminal share."""
