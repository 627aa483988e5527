"""What places a cluster's supervisors on machines and starts them again. It carries no request, no token and no KV."""
