"""The edge: one address in front of several regional gateways."""
