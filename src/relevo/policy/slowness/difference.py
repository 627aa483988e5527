"""What makes the difference between two requests: the phase that took longer in one of them."""

from __future__ import annotations

from relevo.policy.slowness.amounts import seconds
from relevo.policy.slowness.words import Explanation, PhaseName

_ALIKE_S, _ALIKE_FRACTION = 0.01, 0.05  # less is no difference; arbitrary

DOING = {
    PhaseName.PREPARE: "reading and tokenizing",
    PhaseName.LINE: "the gateway's line",
    PhaseName.ROUTE: "waiting for a worker to be ready",
    PhaseName.ROOM: "waiting for blocks",
    PhaseName.QUEUE: "the worker's queue",
    PhaseName.PREFILL: "computing the prompt",
    PhaseName.MESSAGES: "messages",
    PhaseName.RECOVER: "a worker's failure",
    PhaseName.FIRST_WRITE: "writing the first token",
    PhaseName.HANDOFF: "the handoff",
    PhaseName.DECODE: "decoding",
    PhaseName.PREEMPTED: "preemption",
    PhaseName.CLIENT: "waiting for the client to read",
    PhaseName.SETTLE: "what follows the last token",
}


def diff(first: Explanation, second: Explanation) -> str:
    """One sentence about A, the first one, and B."""
    longer_s = second.e2e_s - first.e2e_s
    total_s = max(first.e2e_s, second.e2e_s)
    of_first, of_second = _by_name(first), _by_name(second)
    differences = {name: of_second.get(name, 0.0) - of_first.get(name, 0.0) for name in PhaseName}
    is_alike = abs(longer_s) < max(_ALIKE_S, _ALIKE_FRACTION * total_s)
    sign = 0.0 if is_alike else 1.0 if longer_s > 0 else -1.0
    name = max(differences, key=lambda each: differences[each] * sign if sign else abs(differences[each]))
    both = f"({seconds(of_first.get(name, 0.0))} in A, {seconds(of_second.get(name, 0.0))} in B)"
    if abs(differences[name]) < max(_ALIKE_S, _ALIKE_FRACTION * total_s):
        return f"A took {seconds(first.e2e_s)} and B {seconds(second.e2e_s)}, and no phase makes the difference."
    if not sign:
        return f"A took {seconds(first.e2e_s)} and B {seconds(second.e2e_s)}; they differ most in {DOING[name]} {both}."
    longer, shorter = ("B", "A") if sign > 0 else ("A", "B")
    times = f"{seconds(max(first.e2e_s, second.e2e_s))} against {seconds(min(first.e2e_s, second.e2e_s))}"
    return (
        f"{longer} took {seconds(abs(longer_s))} longer than {shorter} ({times}), and "
        f"{seconds(abs(differences[name]))} more of it went to {DOING[name]} {both}."
    )


def _by_name(explanation: Explanation) -> dict[PhaseName, float]:
    found: dict[PhaseName, float] = {}
    for phase in explanation.phases:
        found[phase.name] = found.get(phase.name, 0.0) + phase.took_s
    return found
