"""What a process decided, one record per decision, in the words in which a simulated process says it too.

Drivers tell a `DecisionLog` what their policies decided and why; policies return reasons and know no log. A record
holds nothing that differs between two runs of the same decisions: no token, block or hash, no measured duration.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from json import dumps
from typing import Protocol

from relevo.core.ports import Clock


class Decision(StrEnum):
    """By whom: g(ateway) or w(orker); facts in brackets."""

    ARRIVE = "arrive"  # g [num_prompt_tokens, num_cached_tokens]
    QUEUE = "queue"  # g: it is in line
    REFUSE = "refuse"  # g [limit, reason]: not let in, or taken out of the line
    SEND = "send"  # g: it left the line
    ROUTE = "route"  # g [worker, split, reason]: who decodes
    WAIT = "wait"  # g: no worker is ready
    PREFILL = "prefill"  # g [worker, num_uncached_tokens, reason]: who computes the prompt
    END = "end"  # g [cause, code, num_tokens]
    FENCE = "fence"  # g [worker, epoch, reason]: a worker has to be ended
    READY = "ready"  # g [worker, epoch]: it gets traffic
    LEAVE = "leave"  # g [worker, epoch]: it finishes what it has and takes nothing new
    LOST = "lost"  # g [worker, epoch]: it is gone
    ROLE = "role"  # g [worker, before, role, reason]: it is told; w [role, num_cores]: it computes in it from now on
    ACCEPT = "accept"  # w [kind]: queued, of which kind
    REJECT = "reject"  # w [code]
    GRANT = "grant"  # w [num_blocks, num_hit_tokens]: room for a request that is computed elsewhere
    TAKE_OVER = "take_over"  # w: it decodes in the room it was granted
    CHUNK = "chunk"  # w [start, num_tokens, num_decodes]: part of a prompt in a step, beside so many decodes
    PREEMPT = "preempt"  # w: its blocks went to another
    HAND_OVER = "hand_over"  # w [num_tokens]: all of it is sealed at the receiver
    FINISH = "finish"  # w [reason]: a continuation ended
    DROP = "drop"  # w: let go of because a gateway said so, or is gone
    FAIL = "fail"  # w [code]
    EVICT = "evict"  # w [num_blocks]: of the prefix cache, since the worker's last decision


Fact = str | float | bool


class DecisionLog(Protocol):
    def note(self, at_ns: int, decider: str, decision: Decision, subject: str, facts: Mapping[str, Fact]) -> None:
        """`decider`: the gateway's or worker's id. `subject`: the request that it is about, if it is about one."""
        ...


class Decide(Protocol):
    """One process's end of a log: it knows who decides, and when."""

    def __call__(self, decision: Decision, subject: str = "", **facts: Fact) -> None: ...


def unlogged(decision: Decision, subject: str = "", **facts: Fact) -> None:
    """A `Decide` for processes whose decisions are not kept."""


def decider(log: DecisionLog | None, name: str, clock: Clock) -> Decide:
    if log is None:
        return unlogged

    def decide(decision: Decision, subject: str = "", **facts: Fact) -> None:
        log.note(clock.now_ns(), name, decision, subject, facts)

    return decide


class DecisionLines:
    """A `DecisionLog` of one line of JSON per decision, in the order in which they are made."""

    def __init__(self, write: Callable[[str], object]) -> None:
        self._write = write

    def note(self, at_ns: int, decider: str, decision: Decision, subject: str, facts: Mapping[str, Fact]) -> None:
        record = {"at_ns": at_ns, "by": decider, "decision": decision.value, "subject": subject, **facts}
        self._write(dumps(record, separators=(",", ":")) + "\n")
