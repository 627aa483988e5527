"""What this gateway tells the others over the same workers, and what it hears of them: the part that does not wait.

Owns the moment at which news leaves: choices and endings at once, progress a little later, all of it in one go. What is
told and believed is `policy.routing.gossip`'s. Does not know connections: `orchestrator.gossip_sockets` has them, or a
simulated world.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from relevo.core.errors import ProtocolError
from relevo.core.ports import Clock, Timer, Timers
from relevo.policy.routing.gossip import Batch, ChangeLog, PeerState
from relevo.wire import gossip as wire
from relevo.wire.messages import Message

PROGRESS_S = 0.02  # how long news may wait that no choice hangs on; arbitrary


@dataclass(frozen=True, slots=True)
class GossipSource:
    """One model's part in the gossip."""

    change_log: ChangeLog
    peer_state: PeerState
    on_heard: Callable[[], None]  # what is known of the workers has changed

    def take(self, gateway_id: str, batch: Batch) -> bool:
        is_whole = self.peer_state.take(gateway_id, batch)
        self.on_heard()
        return is_whole

    def withdraw(self, gateway_id: str) -> None:
        self.peer_state.withdraw(gateway_id)
        self.on_heard()


@dataclass(slots=True, kw_only=True)
class Gossip:
    sources: Mapping[str, GossipSource]  # by model
    clock: Clock
    timers: Timers
    tell: Callable[[Sequence[Message]], None] = lambda messages: None  # to every gateway that follows this one
    on_taken: Callable[[str, int], None] = lambda key_id, num_tokens: None  # by a key, through another gateway
    on_spending: Callable[[str, wire.Spending], None] = lambda gateway_id, spending: None  # through another gateway
    on_lost: Callable[[str], None] = lambda gateway_id: None  # it is not heard any more
    running: Callable[[], dict[str, str]] = dict  # what a gateway that begins to listen is told of spending
    _taken: dict[str, int] = field(default_factory=dict)
    _running: dict[str, str] = field(default_factory=dict)
    _ended: list[wire.Ended] = field(default_factory=list)
    _timer: Timer | None = None  # for progress
    _is_due: bool = False  # news leaves as soon as what happens now has happened

    # ---- telling -----------------------------------------------------------------------------------------------------

    def news(self, is_urgent: bool) -> None:
        """Something changed in a change log."""
        if is_urgent and not self._is_due:
            self._is_due = True
            self.timers.call_at(self.clock.now_ns(), self.flush)
        elif not is_urgent and not self._is_due and self._timer is None:
            self._timer = self.timers.call_at(self.clock.now_ns() + round(PROGRESS_S * 1e9), self.flush)

    def taken(self, key_id: str, num_tokens: int, is_urgent: bool) -> None:
        """A key took tokens of its minute through this gateway, or gave them back."""
        if num_tokens:
            self._taken[key_id] = self._taken.get(key_id, 0) + num_tokens
            self.news(is_urgent)

    def spends(self, key_id: str, running: str) -> None:
        """What a key's requests that run here have used up to now."""
        self._running[key_id] = running
        self.news(False)

    def spent(self, ended: wire.Ended) -> None:
        self._ended.append(ended)
        self.news(True)

    def flush(self) -> None:
        """Tell all that is new."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._is_due = None, False
        messages: list[Message] = [wire.Taken(self._taken)] if self._taken else []
        if self._running or self._ended:
            messages.append(wire.Spending(self._running, tuple(self._ended)))
        self._taken, self._running, self._ended = {}, {}, []
        for model, source in self.sources.items():
            batch = source.change_log.batch()
            if batch is not None:
                messages.append(wire.Told(model, batch))
        if messages:
            self.tell(messages)

    def snapshot(self) -> list[Message]:
        """What a gateway is told that begins to follow this one; `tell` must reach it from then on."""
        self.flush()  # a snapshot is of what all were told
        told: list[Message] = [wire.Told(model, each.change_log.snapshot()) for model, each in self.sources.items()]
        return [*told, wire.Spending(self.running())]

    # ---- listening ---------------------------------------------------------------------------------------------------

    def hear(self, gateway_id: str, message: wire.ToListener) -> None:
        """Raises ProtocolError where something is missing: it is to be followed anew."""
        match message:
            case wire.Told(model=model, batch=batch) if model in self.sources:
                if not self.sources[model].take(gateway_id, batch):
                    raise ProtocolError("a batch is missing")
            case wire.Taken(num_tokens_by_key=taken):
                for key_id, num_tokens in taken.items():
                    self.on_taken(key_id, num_tokens)
            case wire.Spending():
                self.on_spending(gateway_id, message)
            case _:
                raise ProtocolError(f"it sent a {type(message).__name__} that was not asked for")

    def lost(self, gateway_id: str) -> None:
        """It is not heard any more."""
        self.on_lost(gateway_id)
        for source in self.sources.values():
            source.withdraw(gateway_id)
