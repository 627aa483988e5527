"""What slices on disk hold, as objects, and the numbers that reports of arms have in common.

Requests are counted in the phase in which they arrived. One that failed or did not end counts against goodput, and as a
first token that never came. Pure but for reading them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from relevo.bench.arms.arm import in_turns
from relevo.bench.arms.run import ArmsPlan, slice_name
from relevo.bench.arms.slices import Slices
from relevo.telemetry.distribution import MIN_SAMPLES_BEYOND, Distribution, distribution

_SAME_CHANGE_S = 3.0  # roles of two workers that change within this are one switch. Arbitrary


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    due_s: float  # since the start of its phase
    late_s: float  # the load generator's own fault
    outcome: str
    is_met: bool
    ttft_s: float | None
    tpot_s: float | None
    itl_s: Sequence[float]
    num_output_tokens: int

    @property
    def is_done(self) -> bool:
        return self.outcome == "completed"


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseOutcome:
    """Of one arm, over all rounds."""

    name: str
    seconds: float  # of one round
    rounds: int
    requests_per_s: float
    answers: Sequence[Answer]
    generator_cpu: float  # cores, mean over rounds
    server_cpu: float

    @property
    def num_met(self) -> int:
        return sum(answer.is_met for answer in self.answers)

    @property
    def goodput_per_s(self) -> float:
        return self.num_met / (self.seconds * self.rounds)

    @property
    def late_goodput_per_s(self) -> float:
        """Of the second half of the phase, when an arm that adapts has had time to."""
        later = [answer for answer in self.answers if answer.due_s >= self.seconds / 2]
        return sum(answer.is_met for answer in later) / (self.seconds * self.rounds / 2)

    @property
    def num_failed(self) -> int:
        return sum(answer.outcome == "failed" for answer in self.answers)

    @property
    def num_unfinished(self) -> int:
        return sum(answer.outcome == "unfinished" for answer in self.answers)

    @property
    def ttft(self) -> Distribution:
        known = [answer.ttft_s for answer in self.answers if answer.is_done and answer.ttft_s is not None]
        return distribution(known, num_missing=len(self.answers) - len(known))

    @property
    def tpot(self) -> Distribution:
        return distribution([a.tpot_s for a in self.answers if a.is_done and a.tpot_s is not None])

    @property
    def gaps_s(self) -> list[float]:
        return [gap for answer in self.answers if answer.is_done for gap in answer.itl_s]

    @property
    def itl(self) -> Distribution:
        return distribution(self.gaps_s)

    @property
    def longest_gap(self) -> Distribution:
        """Of each request."""
        return distribution([max(a.itl_s) for a in self.answers if a.is_done and a.itl_s])

    @property
    def most_late_s(self) -> float:
        return max((answer.late_s for answer in self.answers), default=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Switch:
    round: int
    phase: str
    after_s: float  # since the phase began
    roles: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmOutcome:
    name: str
    rounds: int
    phases: Sequence[PhaseOutcome]  # without the warm-up
    switches: Sequence[Switch]
    num_returns: int  # switches back to roles that the same phase had begun with or had already left
    drain_s: float  # the longest

    def phase(self, name: str) -> PhaseOutcome | None:
        return next((phase for phase in self.phases if phase.name == name), None)

    @property
    def goodput_per_s(self) -> float:
        """Over all phases in sequence."""
        seconds = sum(phase.seconds * phase.rounds for phase in self.phases)
        return sum(phase.num_met for phase in self.phases) / seconds if seconds else 0.0


def read_outcomes(plan: ArmsPlan, slices: Slices) -> list[ArmOutcome]:
    """Of every arm that has a result, in the plan's order."""
    found: dict[str, list[dict[str, Any]]] = {}
    for number, arm in in_turns(plan.arms, plan.rounds):
        body = slices.read(slice_name(number, arm))
        if body is not None:
            found.setdefault(arm.name, []).append(body)
    return [arm_outcome(arm.name, found[arm.name]) for arm in plan.arms if arm.name in found]


def arm_outcome(name: str, bodies: Sequence[Mapping[str, Any]]) -> ArmOutcome:
    phases: dict[str, list[tuple[float, Mapping[str, Any]]]] = {}
    switches: list[Switch] = []
    num_returns = 0
    for body in bodies:
        start_s = 0.0
        for phase in body["phases"]:
            if not phase["is_warm_up"]:
                phases.setdefault(phase["name"], []).append((start_s, phase))
                made, returns = _switches(body, phase["name"], start_s, phase["seconds"])
                switches += made
                num_returns += returns
            start_s += phase["seconds"]
    return ArmOutcome(
        name=name,
        rounds=len(bodies),
        phases=[_phase(phase_name, rows) for phase_name, rows in phases.items()],
        switches=switches,
        num_returns=num_returns,
        drain_s=max(body["drain_s"] for body in bodies),
    )


def _phase(name: str, rows: Sequence[tuple[float, Mapping[str, Any]]]) -> PhaseOutcome:
    first = rows[0][1]
    return PhaseOutcome(
        name=name,
        seconds=first["seconds"],
        rounds=len(rows),
        requests_per_s=first["requests_per_s"],
        answers=[_answer(one, start_s) for start_s, phase in rows for one in phase["requests"]],
        generator_cpu=sum(phase["generator_cpu"] for _, phase in rows) / len(rows),
        server_cpu=sum(phase["server_cpu"] for _, phase in rows) / len(rows),
    )


def _answer(one: Mapping[str, Any], start_s: float) -> Answer:
    due_s = one["due_at_s"]
    return Answer(
        due_s=due_s - start_s,
        late_s=max(0.0, (one["sent_at_s"] if one["sent_at_s"] is not None else due_s) - due_s),
        outcome=one["outcome"],
        is_met=one["met"],
        ttft_s=one["client_ttft_s"],
        tpot_s=one["tpot_s"],
        itl_s=one["itl_s"],
        num_output_tokens=one["num_output_tokens"],
    )


def _switches(body: Mapping[str, Any], phase: str, start_s: float, seconds: float) -> tuple[list[Switch], int]:
    """Within a phase, the roles of several workers that change together taken as one; and how many led back."""
    before: Mapping[str, str] | None = None
    states: list[Mapping[str, str]] = []
    made: list[Switch] = []
    for at_s, roles in body["roles"]:
        if at_s < start_s:
            before = roles
        elif at_s < start_s + seconds:
            if before is None:  # the first look at all
                before = roles
                continue
            after_s = at_s - start_s
            if made and after_s - made[-1].after_s < _SAME_CHANGE_S:
                made.pop()
            made.append(Switch(round=body["round"], phase=phase, after_s=after_s, roles=roles))
    states = [*([before] if before is not None else []), *(switch.roles for switch in made)]
    made = [switch for was, switch in zip(states, made, strict=False) if was != switch.roles]
    states = [*states[:1], *(switch.roles for switch in made)]
    return made, sum(roles in states[:place] for place, roles in enumerate(states))


def by_time(gaps_s: Sequence[float], q: float) -> float | None:
    """The gap in which a stream is at a random moment: quantile `q` of gaps weighted by their own length.

    None with fewer than ten gaps longer than it: then it is one request's luck.
    """
    ordered = sorted(gaps_s)
    wanted, passed = q * sum(ordered), 0.0
    for place, gap in enumerate(ordered):
        passed += gap
        if passed >= wanted:
            return gap if len(ordered) - 1 - place >= MIN_SAMPLES_BEYOND else None
    return None


def told_ms(value: float | str | None) -> str:
    """A quantile in milliseconds, or that there are too few samples for one."""
    if isinstance(value, str):
        return "too few" if value.startswith("needs") else "never came"
    return "too few" if value is None else f"{value * 1e3:,.1f}"
