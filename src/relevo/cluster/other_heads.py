"""What other heads remember of a node, asked by the head that is about to take it in. asyncio.

A node whose disk is gone, and whose clock was set back, has its last epoch from whichever head saw it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable

from relevo.cluster.identity import NodeIdentity
from relevo.cluster.member_messages import FROM_HEAD, AskEpoch, Known
from relevo.cluster.opening import Purpose
from relevo.cluster.peer import NodeRole
from relevo.cluster.stream import open_stream
from relevo.core.errors import RelevoError
from relevo.core.host_port import HostPort

log = logging.getLogger("relevo.cluster")

ASK_HEADS_S = 1.0  # arbitrary; less than a lease


async def highest_elsewhere(identity: NodeIdentity, heads: Iterable[HostPort], name: str) -> int:
    """The highest epoch of the node that those of the heads know that can be reached; 0: none knows it."""
    return max(await asyncio.gather(*(_ask(identity, head, name) for head in heads)), default=0)


async def _ask(identity: NodeIdentity, head: HostPort, name: str) -> int:
    try:
        async with asyncio.timeout(ASK_HEADS_S):
            stream = await open_stream(head, Purpose.MEMBER, identity=identity, role=NodeRole.HEAD)
            try:
                stream.send(AskEpoch(name))
                answer = await stream.receive(FROM_HEAD)
            finally:
                stream.close("it was answered")
    except (OSError, RelevoError) as error:
        log.debug("head %s was not asked about %s: %s", head, name, error)
        return 0
    return answer.epoch if isinstance(answer, Known) else 0
