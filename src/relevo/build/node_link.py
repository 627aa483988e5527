"""How a gateway reaches a worker of another box: a link over the control port of its node."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from relevo.cluster.identity import NodeIdentity
from relevo.cluster.member_messages import LinkTo
from relevo.cluster.moving import Mover
from relevo.cluster.opening import Purpose
from relevo.cluster.stream import open_stream
from relevo.orchestrator.ports import AwaitedLink
from relevo.wire.address import NodeAddress
from relevo.wire.client import OPEN_TIMEOUT_S, WorkerConnection, worker_stream

Connect = Callable[[str], Awaitable[AwaitedLink]]


def connect_anywhere(identity: NodeIdentity, mover: Mover, gateway: str) -> Connect:
    """`gateway`: of this process, so that nodes know its older links. `mover`: links outlive certificates."""

    async def connect(address: str) -> AwaitedLink:
        node = NodeAddress.parse(address)
        if node is None:
            return await WorkerConnection.open(address)
        return await _open(node, identity, mover, gateway)

    return connect


async def _open(node: NodeAddress, identity: NodeIdentity, mover: Mover, gateway: str) -> WorkerConnection:
    """Raises OSError, or RelevoError as `WorkerConnection.open` does."""
    about = LinkTo(gateway, node.worker_id, node.epoch, node.session)
    opened = await open_stream(node.place, Purpose.LINK, identity=identity, about=about, name=node.node)
    stream = worker_stream(f"the worker {node.worker_id} at {node.place}")
    mover.carry(opened, node.place, node.node).start(stream)
    async with asyncio.timeout(OPEN_TIMEOUT_S):
        return await WorkerConnection.over(stream)
