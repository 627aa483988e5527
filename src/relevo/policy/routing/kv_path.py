"""How a pair of workers hands over KV: over which transport, computing in whose memory, and at what class of cost.

The only place that decides whether two workers share memory: by the identity of what they map, never by a transport's
name.
"""

from __future__ import annotations

from functools import lru_cache

from relevo.core.handoff import KVPath, KVSite, Link, Reach

_FARTHEST = {Reach.ARENA: Link.MEMORY, Reach.BOX: Link.BOX, Reach.NETWORK: Link.NETWORK}


def link_between(one: KVSite, other: KVSite) -> Link:
    if one.box_id != other.box_id:
        return Link.NETWORK
    return Link.MEMORY if one.arena_id == other.arena_id else Link.BOX


@lru_cache(maxsize=4096)  # arbitrary: pairs of workers. A choice asks for many of them, again and again
def kv_path(sender: KVSite, receiver: KVSite) -> KVPath | None:
    """The transport of least reach that both have and that reaches; of equals the receiver's first. None: no transport
    of both reaches, so the sender cannot compute prompts for the receiver."""
    names = {endpoint.transport for endpoint in sender.endpoints}
    link = link_between(sender, receiver)
    usable = [each for each in receiver.endpoints if each.transport in names and link <= _FARTHEST[each.reach]]
    if not usable:
        return None
    best = min(usable, key=lambda endpoint: _FARTHEST[endpoint.reach])
    cost = Link.MEMORY if best.reach is Reach.ARENA else max(link, Link.BOX)
    return KVPath(best.transport, best.address, cost)
