"""Which quiet stretches of a world may be taken at once, and when what they brought has to be known.

A stretch is told late: its tokens have the times at which they arrived, and everything that could have been decided by
one of them is decided after it: workers catch up when a request arrives or leaves, when a timer fires, and when a
gateway looks at their loads. So are the tokens of streams that go on in any other step (`sim.owed`). A message of a
quiet step lets no request in, because streams that go on only take room; so nothing else happens, and the decision log
is the same with jumps off.

Where that does not hold there are no jumps: gateways over the same workers tell each other of tokens as they come, an
edge before regions hears them later than they do, lossy links deliver at times that only they know, a worker that
stands still is found by deadlines that tokens move, what workers learn of a step's cost follows from each step, and
several tenants in line take their turns by how often they were looked at.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

from relevo.policy.admission.admission import Admission
from relevo.sim.config import FaultKind, WorldConfig
from relevo.sim.kernel import seconds
from relevo.sim.worker import SimWorker


@dataclass(slots=True)
class Arrivals:
    """When the tokens of an output that is told late arrived, one after the other; empty: now."""

    at_ns: Sequence[int] = ()


class _Gateway(Protocol):
    @property
    def admission(self) -> Admission: ...

    def tell_owed(self) -> None: ...


@dataclass(slots=True)
class Quiet:
    is_allowed: bool = False
    latency_ns: int = 0
    arrivals: Arrivals = field(default_factory=Arrivals)
    jumping: dict[SimWorker, None] = field(default_factory=dict)  # in a stretch
    owing: dict[_Gateway, None] = field(default_factory=dict)  # tokens have come that they are not told of
    watched: set[str] = field(default_factory=set)  # requests of which a token may be decided about when it comes
    has_tenants: bool = False  # several, or batch requests: they take turns
    _has_line: bool = False
    _is_catching_up: bool = False

    @classmethod
    def of(cls, config: WorldConfig) -> Quiet:
        wire = config.network.wire
        is_lossy = wire.jitter_s > 0.0 or wire.loss_probability > 0.0
        is_shared = len(config.regions) > 1 or any(region.num_gateways > 1 for region in config.regions)
        is_held_up = any(fault.kind in (FaultKind.STOP, FaultKind.CUT) for fault in config.faults)
        is_asked = config.serving.heartbeat_timeout_s is not None
        is_learning = config.serving.learns_costs
        is_allowed = config.jumps and not (is_lossy or is_shared or is_held_up or is_asked or is_learning)
        return cls(is_allowed, seconds(wire.latency_s))

    @property
    def may_owe(self) -> bool:
        """Tokens of streams that go on need not be told one by one."""
        return self.is_allowed and not self.has_tenants

    def may_jump(self, worker: SimWorker) -> bool:
        if not self.is_allowed or (self.has_tenants and self._has_line):
            return False
        return not self.watched or self.watched.isdisjoint(worker.scheduler.requests)

    def catch_up(self) -> None:
        """Everything that gateways have heard by now is told."""
        if (self.jumping or self.owing) and not self._is_catching_up:
            self._is_catching_up = True
            for worker in tuple(self.jumping):
                worker.catch_up()
            while self.owing:
                gateway, _ = self.owing.popitem()
                gateway.tell_owed()
            self._is_catching_up = False

    @contextmanager
    def as_told(self) -> Iterator[None]:
        """Loads are looked at as they were told last: streams that went on since have only taken room."""
        before, self._is_catching_up = self._is_catching_up, True
        try:
            yield
        finally:
            self._is_catching_up = before

    def settle(self, gateway: _Gateway) -> None:
        """Something has happened there: requests may wait for their turn from now on, or do so no more."""
        if self.has_tenants:
            self._has_line = gateway.admission.has_line
            if self._has_line:
                self.catch_up()
                for worker in tuple(self.jumping):
                    worker.cut_stretch()
