"""Who used what, what it costs, and who may use more: the ledger, API keys and limits."""
