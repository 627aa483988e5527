"""`relevo bench peers`: this server and others, asked alike."""
