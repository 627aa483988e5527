"""Machines that belong together: who they are, how they find and hear each other, and what they carry."""
