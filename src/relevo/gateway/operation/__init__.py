"""What operators and probes ask of a gateway: health, readiness, metrics, usage, a drain."""
