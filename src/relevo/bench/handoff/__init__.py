"""`relevo bench handoff`: what handoffs cost."""
