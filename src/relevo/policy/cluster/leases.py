"""How long a node may count on a head, and how long a head waits for a node.

A lease runs from when the node *sent* the heartbeat that was acknowledged; the head counts from when it *received* the
last one, which is later. So a node has fenced itself before its head calls it gone, whatever delays there are and
wherever it was frozen, as long as two clocks agree to FENCE_S : GONE_S about how long a second is.
"""

from __future__ import annotations

BEAT_S = 1.0  # between heartbeats
FENCE_S = 3.0  # without an acknowledgement: the head may be about to give the node up
GONE_S = 5.0  # without a heartbeat: nothing of that session is accepted any more
MAX_SKEW_S = 1.0  # between two boxes' clocks of the day, which stand in logs, certificates and the ledger

FENCE_NS, GONE_NS = round(FENCE_S * 1e9), round(GONE_S * 1e9)
