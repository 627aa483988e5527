"""How long steps and handoffs take."""
