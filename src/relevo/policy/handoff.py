"""One request between two workers: what to ask of whom, and what to do when somebody fails. Pure.

Owns the order of things: room on the decode worker first, then the prompt, then decoding only once all KV is sealed
and all first tokens are here; and the rule that granted blocks are released only when nobody can write into them any
more. A timer asks (AskDrain) and, unanswered, kills (FenceWorker); it never releases.

Does not know sockets, load, text, or which worker is a good choice. Source: docs/architecture.md, section 4.

    ROUTING ─► QUEUED ─► CHOOSING ─► PREFILLING ─► TRANSFERRING ─► DECODING ─► GONE
       │                   ▲  │          └────┬─────────┘             ▲
       │                   │  └─ local ───────┼──────► SUBMITTED ─────┘
       └── not split ──────┼──────────────────┼───────────▲
                           └── RECALLING ◄────┘ prefill worker failed
    a decode worker failed: REPLACING ─► ROUTING;  after End: DRAINING ─► GONE
"""

from __future__ import annotations

from relevo.core.baton import SampleState
from relevo.core.ids import RequestId
from relevo.policy.handoff_words import (
    ArmTimer,
    AskDrain,
    ChoosePrefill,
    ClientGone,
    Dropped,
    Effect,
    Emit,
    End,
    Event,
    Failed,
    FenceWorker,
    Granted,
    HandoffLimits,
    HandoffState,
    Leg,
    NoRoute,
    Outcome,
    Phase,
    PrefillChosen,
    PrefillFinished,
    Route,
    Routed,
    Sealed,
    SendPrefill,
    SendRelease,
    SendReserve,
    SendSeal,
    SendStartDecode,
    SendSubmit,
    StopEarly,
    Tick,
    Tokens,
    WorkerDied,
)

__all__ = [
    "ArmTimer",
    "AskDrain",
    "ChoosePrefill",
    "ClientGone",
    "Dropped",
    "Effect",
    "Emit",
    "End",
    "Event",
    "Failed",
    "FenceWorker",
    "Granted",
    "HandoffLimits",
    "HandoffState",
    "Leg",
    "NoRoute",
    "Outcome",
    "Phase",
    "PrefillChosen",
    "PrefillFinished",
    "Route",
    "Routed",
    "Sealed",
    "SendPrefill",
    "SendRelease",
    "SendReserve",
    "SendSeal",
    "SendStartDecode",
    "SendSubmit",
    "StopEarly",
    "Tick",
    "Tokens",
    "WorkerDied",
    "start",
]


def start(
    request_id: RequestId,
    *,
    num_prompt_tokens: int,
    num_samples: int,
    block_size: int,
    limits: HandoffLimits,
) -> tuple[HandoffState, tuple[Effect, ...]]:
    """State of a request that was just admitted, and its first effect (Route)."""
    state = HandoffState(
        request_id=request_id,
        num_prompt_tokens=num_prompt_tokens,
        block_size=block_size,
        limits=limits,
        samples=tuple(SampleState(sample_index=i) for i in range(num_samples)),
    )
    return state, (Route("new", (), resume=False),)
