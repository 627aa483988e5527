"""A planner on virtual time: what it does about roles, and what simpler rules do."""
