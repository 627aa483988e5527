"""Traces of requests: continued from clients, told when a request has ended, delivered to a collector off the loop."""
