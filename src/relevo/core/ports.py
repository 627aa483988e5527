"""The seams. What each promises is held by a suite that every implementation has (tests/arch/test_structure.py)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, runtime_checkable

from relevo.core.cut import LocalBlock
from relevo.core.events import TransferEvent
from relevo.core.handoff import Reach
from relevo.core.kv import KVLayout, KVRefusal, Reservation
from relevo.core.plan import StepPlan, StepResult

MAX_DURATION_S = 1e9  # arbitrary: 31 years, whose nanoseconds are still a 64-bit integer


class Clock(Protocol):
    """Monotonic time."""

    def now_ns(self) -> int: ...


class Timer(Protocol):
    """One call that is to come."""

    def cancel(self) -> None:
        """Idempotent; without effect once it was made."""
        ...


class Timers(Protocol):
    """Calls at a time of the same process's `Clock`: of an event loop, or of a simulated world."""

    def call_at(self, at_ns: int, callback: Callable[[], None]) -> Timer:
        """Make the call once, at that time or soon after it; never from within `call_at`, even if the time is past."""
        ...


@runtime_checkable
class ModelRunner(Protocol):
    """Executes step plans. Synchronous; owns weights and the KV arena; knows nothing of queues or peers."""

    layout: KVLayout
    vocab_size: int
    max_model_len: int

    def execute(self, plan: StepPlan) -> StepResult:
        """Carry out block copies, compute every row, write its KV into the row's blocks, draw the samples.

        Deterministic: a row's tokens depend on its own tokens, blocks and sampling parameters only. Plans come in order
        and are differences (`core.replica`); one that raised may come again, whole or in parts.
        """
        ...

    def warm_up(self) -> None:
        """Run a few steps on scratch blocks so that the first request pays for no lazy initialisation."""
        ...


class KVTransport(Protocol):
    """Moves KV blocks from the worker that computes a prompt into blocks reserved on another worker.

    Receiver: `reserve` exposes blocks under their generations, `release` withdraws them (writes that still arrive
    are refused from then on, where the transport can refuse). Sender: `write` queues blocks and returns at once;
    `seal` asks for an acknowledgement that everything written so far has been applied; completions come through
    `poll`, after `on_wake` has been called from any thread.
    """

    name: str  # as in kv.transports.registry
    reach: Reach  # ARENA: the sender computed straight into the receiver's blocks, `write` moves nothing

    @property
    def num_refused_writes(self) -> int:
        """Writes under an ended right, since the start, counted where they were refused."""
        ...

    @property
    def num_refused_connections(self) -> Mapping[KVRefusal, int]:
        """Connections that ended before a block could be written over them, since the start; none where peers do not
        connect."""
        ...

    def address(self) -> str:
        """Where senders reach this receiver; opaque to all others."""
        ...

    def take_epoch(self, epoch: int) -> None:
        """The worker is another incarnation from here on: senders that want an earlier one are refused."""
        ...

    def reserve(self, reservation: Reservation) -> None: ...

    def release(self, reservation: Reservation) -> None: ...

    def may_write(self, reservation: Reservation) -> bool:
        """Sender side: False once the receiver has withdrawn the blocks or has a new epoch."""
        ...

    def write(
        self, reservation: Reservation, address: str, first_index: int, local_blocks: Sequence[LocalBlock]
    ) -> None:
        """Queue `local_blocks` for reservation.block_ids[first_index : first_index + len(local_blocks)]. They are cut
        ones if, and only if, the receiver's blocks have another size; no transport whose ends share memory gets these.
        """
        ...

    def seal(self, reservation: Reservation, address: str, num_tokens: int) -> None: ...

    def cancel(self, reservation: Reservation) -> bool:
        """Sender side: drop queued writes. When this returns, at once, the sender's blocks are its own again: no byte
        put there from now on is sent. False: what was sent before may still arrive; `poll` says WritesEnded once
        nothing of it is under way. Idempotent."""
        ...

    def poll(self) -> list[TransferEvent]: ...

    def close(self) -> None: ...
