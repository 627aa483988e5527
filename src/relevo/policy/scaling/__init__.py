"""How many machines of which kind a load needs: what there is, what could be built of it, what that would do."""
