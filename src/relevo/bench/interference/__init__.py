"""`relevo bench interference`: what prompts do to streams."""
