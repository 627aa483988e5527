"""`relevo bench record`: live runs, as the simulator is compared with."""
