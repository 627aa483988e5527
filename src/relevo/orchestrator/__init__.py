"""Requests on their way through workers: membership, placement, the admission queue, dispatch. Imports no HTTP."""
