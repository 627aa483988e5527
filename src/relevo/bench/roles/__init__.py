"""`relevo bench roles`: workers change their roles under load."""
