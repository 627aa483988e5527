"""Drives `policy.scaling.role_planner` over a running server: observe, ask, decide, act, tell."""
