"""How a gateway reaches a worker of another box: a link over the control port of its node."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from relevo.cluster.identity import NodeIdentity
from relevo.cluster.member_messages import LinkTo
from relevo.cluster.opening import Purpose
from relevo.cluster.stream import open_stream
from relevo.orchestrator.ports import AwaitedLink
from relevo.wire.address import NodeAddress
from relevo.wire.client import OPEN_TIMEOUT_S, WorkerConnection, worker_stream

Connect = Callable[[str], Awaitable[AwaitedLink]]


def connect_anywhere(identity: NodeIdentity, gateway: str) -> Connect:
    """`gateway`: of this process, so that nodes know its older links."""

    async def connect(address: str) -> AwaitedLink:
        node = NodeAddress.parse(address)
        if node is None:
            return await WorkerConnection.open(address)
        return await _open(node, identity, gateway)

    return connect


async def _open(node: NodeAddress, identity: NodeIdentity, gateway: str) -> WorkerConnection:
    """Raises OSError, or RelevoError as `WorkerConnection.open` does."""
    about = LinkTo(gateway, node.worker_id, node.epoch, node.session)
    opened = await open_stream(node.place, Purpose.LINK, identity=identity, about=about, name=node.node)
    transport, received = opened.detach()
    stream = worker_stream(f"the worker {node.worker_id} at {node.place}")
    transport.set_protocol(stream)
    stream.connection_made(transport)
    if received:
        stream.data_received(received)
    async with asyncio.timeout(OPEN_TIMEOUT_S):
        return await WorkerConnection.over(stream)
