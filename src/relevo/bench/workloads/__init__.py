"""`relevo bench workloads`: five kinds of traffic in sequence under every mode."""
