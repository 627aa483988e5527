"""Why a request took as long as it did: phases of its timeline, the cause of its slowness, and what would help."""
