"""How long steps and handoffs take, and what fits into memory: models of a worker, for planner and simulator."""
