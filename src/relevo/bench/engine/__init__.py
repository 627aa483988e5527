"""`relevo bench engine`: steps of the engine alone."""
