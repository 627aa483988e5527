"""The node process's connections to the workers of its own box: tells them their epoch, knows which can be reached.
Engines that are not ours are told of only: gateways reach them directly.

A worker is offered to heads once it has said Hello under the node's present epoch. One that ends is looked for again,
as its supervisor starts it again. What workers say beside Hello is for gateways and not read here.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from relevo.core.cluster import NodeEngine, NodeWorker
from relevo.core.errors import RelevoError
from relevo.core.handoff import Reach
from relevo.policy.cluster.epochs import incarnation_of, node_epoch_of, worker_epoch
from relevo.wire import messages as wire
from relevo.wire.client import WorkerConnection

log = logging.getLogger("relevo.cluster")

_RETRY_S = 0.1  # arbitrary: a worker that loads weights is asked for so long
EPOCH_TIMEOUT_S = 30.0  # for a worker to be of another epoch: longer than any step; then it is ended


@dataclass(slots=True, eq=False)
class OwnWorker:
    worker_id: str
    address: str  # unix:/path
    connection: WorkerConnection | None = None
    hello: wire.Hello | None = None  # of the present connection
    has_epoch: asyncio.Event = field(default_factory=asyncio.Event)


class OwnWorkers:
    """`run` until cancelled."""

    def __init__(
        self,
        addresses: Iterable[tuple[str, str]],
        on_change: Callable[[], None],
        kill: Callable[[str, int, str], None],
        engines: Sequence[NodeEngine] = (),
        engines_idle: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """`addresses`: worker id and where it listens. `kill(worker_id, incarnation, reason)`: by the supervisor.
        `engines_idle()` returns when the engines have nothing left to do."""
        self._engines, self._engines_idle = engines, engines_idle
        self._workers = {worker_id: OwnWorker(worker_id, address) for worker_id, address in addresses}
        self._on_change = on_change
        self._kill = kill
        self._epoch = 0
        self._is_draining = False
        self._lost = asyncio.Event()

    @property
    def hello(self) -> wire.Hello | None:
        """Of any of them."""
        return next((each.hello for each in self._workers.values() if each.hello is not None), None)

    @property
    def num_workers(self) -> int:
        return len(self._workers)

    async def all_gone(self) -> None:
        """Returns when none of them is connected, and no engine has anything to do."""
        if self._engines and self._engines_idle is not None:
            await self._engines_idle()
        while any(each.connection is not None for each in self._workers.values()):
            self._lost.clear()
            await self._lost.wait()

    def address_of(self, worker_id: str) -> str | None:
        """Of one that has the node's present epoch."""
        worker = self._workers.get(worker_id)
        return worker.address if worker is not None and self._is_offered(worker) else None

    def offered(self) -> tuple[NodeWorker, ...]:
        return tuple(
            NodeWorker(
                worker_id=each.worker_id,
                role=each.hello.role,
                epoch=each.hello.epoch,
                kv_addresses=tuple(
                    endpoint.address for endpoint in each.hello.kv_site.endpoints if endpoint.reach is Reach.NETWORK
                ),
            )
            for each in self._workers.values()
            if each.hello is not None and self._is_offered(each)
        )

    def offered_engines(self) -> tuple[NodeEngine, ...]:
        if not self._epoch:
            return ()
        return tuple(replace(each, is_leaving=self._is_draining) for each in self._engines)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            for worker in self._workers.values():
                tasks.create_task(self._keep(worker))

    async def take_epoch(self, epoch: int) -> None:
        """Returns when no worker of this box has anything of an earlier one. Those that are not there begin with it."""
        self._epoch = epoch
        waiting = [worker for worker in self._workers.values() if self._tell(worker)]
        for worker in waiting:
            try:
                await asyncio.wait_for(worker.has_epoch.wait(), EPOCH_TIMEOUT_S)
            except TimeoutError:
                reason = f"it has not let go of everything within {EPOCH_TIMEOUT_S:.0f} s"
                self._end(worker, reason)
        self._on_change()

    def drain(self) -> None:
        """They finish what they have and end."""
        self._is_draining = True
        for worker in self._workers.values():
            self._send(worker, wire.Drain())
        if self._engines:
            self._on_change()

    def kill(self, worker_id: str, epoch: int, reason: str) -> None:
        """If that incarnation is still there."""
        worker = self._workers.get(worker_id)
        if worker is not None and worker.hello is not None and worker.hello.epoch == epoch:
            self._end(worker, reason)

    def _end(self, worker: OwnWorker, reason: str) -> None:
        if worker.hello is not None:
            self._kill(worker.worker_id, incarnation_of(worker.hello.epoch), reason)

    def _is_offered(self, worker: OwnWorker) -> bool:
        if worker.connection is None or worker.hello is None or not self._epoch:
            return False
        return node_epoch_of(worker.hello.epoch) == self._epoch

    def _tell(self, worker: OwnWorker) -> bool:
        """True: it has been told and will say Hello."""
        if worker.hello is None or not self._epoch or node_epoch_of(worker.hello.epoch) == self._epoch:
            return False
        worker.has_epoch.clear()
        return self._send(worker, wire.SetEpoch(worker_epoch(self._epoch, worker.hello.epoch)))

    def _send(self, worker: OwnWorker, message: wire.ToWorker) -> bool:
        if worker.connection is None:
            return False
        try:
            worker.connection.send(message)
        except RelevoError:
            return False
        return True

    async def _keep(self, worker: OwnWorker) -> None:
        while True:
            try:
                connection = await WorkerConnection.open(worker.address)
            except (OSError, RelevoError):
                await asyncio.sleep(_RETRY_S)
                continue
            try:
                worker.connection, worker.hello = connection, connection.hello
                self._tell(worker)
                if self._is_draining:
                    self._send(worker, wire.Drain())
                self._on_change()
                while True:
                    self._heard(worker, await connection.receive())
            except RelevoError as error:
                log.info("%s: %s", worker.worker_id, error.message)
            finally:
                connection.close()
                worker.connection = worker.hello = None
                worker.has_epoch.set()  # what is gone has let go
                self._lost.set()
                self._on_change()

    def _heard(self, worker: OwnWorker, message: wire.ToGateway) -> None:
        if isinstance(message, wire.Hello):
            worker.hello = message
            if node_epoch_of(message.epoch) == self._epoch:
                worker.has_epoch.set()
            else:
                self._tell(worker)
            self._on_change()
