"""`relevo bench sessions`: conversations and where they are sent."""
