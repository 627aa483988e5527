"""`relevo bench quality`: what a dtype costs in answers."""
