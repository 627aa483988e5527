"""`relevo bench soak`: hours of traffic and disturbances."""
