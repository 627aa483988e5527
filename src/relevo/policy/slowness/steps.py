"""Candidates that are slow steps: of the prompt, between tokens, and the way from the first token to the second."""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, replace

from relevo.core.events import UNKNOWN_COSTS, StepCosts, WorkerLoad
from relevo.core.handoff import Link
from relevo.core.timeline import Leg, Timeline
from relevo.policy.slowness.amounts import count, seconds, size
from relevo.policy.slowness.candidate import Candidate, SlowPart
from relevo.policy.slowness.leg_phases import neighbour_prompt_tokens
from relevo.policy.slowness.spans import Span
from relevo.policy.slowness.step_shares import StepShares, StepWork, shares_of, work_between
from relevo.policy.slowness.words import PhaseName, RequestCounts, SlowCause

_OUTLIER = 3.0  # so many times its typical gap is one that is felt; arbitrary
_IN_DECODE_FRACTION = 0.9  # of a gap, for it to be one between two steps
_TOLD_FRACTION = 0.25  # of what is not its own: then what was beside it accounts for it
_UNEXPLAINED_FRACTION = 0.5  # of a prompt's or an answer's time; costs are fitted, so not less


@dataclass(frozen=True, slots=True)
class Steps:
    """One request's steps, looked at leg by leg."""

    spans: Sequence[Span]
    timeline: Timeline
    counts: RequestCounts
    num_samples: int
    end_at_ns: int

    def candidates(self) -> Iterator[Candidate]:
        for leg in self.timeline.legs:
            yield from self._prompt(leg)
            yield from self._handoff(leg)
            yield from self._answer(leg)
        yield from self._gap()

    # ---- the prompt --------------------------------------------------------------------------------------------------

    def _prompt(self, leg: Leg) -> Iterator[Candidate]:
        """Its chunks took longer than they would have alone."""
        costs, load = _prompt_costs(leg), _asked_load(leg)
        if leg.facts is None or leg.is_resumed or leg.first_output_at_ns is None or costs == UNKNOWN_COSTS:
            return
        took_s = self._overlap_s((PhaseName.PREFILL,), leg.routed_at_ns, leg.first_output_at_ns)
        num_computed = max(leg.facts.num_prompt_tokens - leg.facts.num_cached_tokens, 1)
        context = leg.facts.num_cached_tokens + num_computed / 2
        excess_s = took_s - _chunks_s(costs, leg.facts.num_chunks, num_computed, context)
        worker_id = (leg.prefill or leg.decode).worker_id
        num_others = neighbour_prompt_tokens(leg)
        num_running = load.num_running if load is not None else 0
        beside_s = costs.per_token_s * num_others - leg.facts.queue_s
        crowd_s = leg.facts.num_chunks * costs.per_token_s * num_running
        if beside_s >= _TOLD_FRACTION * excess_s:
            cause, why = (
                SlowCause.LONG_NEIGHBOUR,
                f"{count(num_others, 'prompt token')} of others were computed beside it",
            )
        elif crowd_s >= _TOLD_FRACTION * excess_s:
            cause, why = SlowCause.CROWDED_STEPS, f"{count(num_running, 'stream')} ran beside it"
        elif (
            took_s - _chunks_s(_first_costs(load, costs), leg.facts.num_chunks, num_computed, context)
            >= (_UNEXPLAINED_FRACTION * took_s)
            and excess_s >= _UNEXPLAINED_FRACTION * took_s
        ):
            cause, why = SlowCause.SLOW_STEPS, f"its {count(num_computed, 'token')} should not take {worker_id} so long"
        else:
            return
        text = f"{seconds(excess_s)} more than its prompt takes alone on {worker_id}: {why}"
        yield Candidate(cause=cause, part=SlowPart.FIRST_TOKEN, avoidable_s=excess_s, telling=text, detail="prompt")

    # ---- first token to second ---------------------------------------------------------------------------------------

    def _handoff(self, leg: Leg) -> Iterator[Candidate]:
        if leg.prefill is None or leg.prefill == leg.decode or leg.first_output_at_ns is None or leg.failure:
            return
        until_ns = leg.decode_output_at_ns if leg.decode_output_at_ns is not None else self.end_at_ns
        sealed_ns = leg.handed_over_at_ns if leg.handed_over_at_ns is not None else leg.decode_started_at_ns
        sealed_ns = until_ns if sealed_ns is None else sealed_ns
        phase = (PhaseName.HANDOFF,)
        moving_s = self._overlap_s(phase, leg.first_output_at_ns, sealed_ns)
        if leg.link in (Link.BOX, Link.NETWORK):
            yield self._slow_link(leg, moving_s)
        elif moving_s > 0:
            text = f"{seconds(moving_s)} until {leg.decode.worker_id} could be told to go on"
            yield Candidate(
                cause=SlowCause.GATEWAY, part=SlowPart.ANSWER, avoidable_s=moving_s, telling=text, detail="messages"
            )
        taken_s = self._overlap_s(phase, sealed_ns, until_ns)
        work = work_between(leg.started_counters, leg.first_counters, leg.decode_load)
        if work is not None and work.num_steps > 0:
            shares = self._shares(taken_s, work, leg, 0.0)
            for cause, share_s, why in _told(shares, work):
                text = f"{seconds(share_s)} until {leg.decode.worker_id} took it up: {why}"
                yield Candidate(cause=cause, part=SlowPart.ANSWER, avoidable_s=share_s, telling=text)
        elif taken_s > 0:
            running = f": {count(leg.decode_load.num_running, 'stream')} ran there" if leg.decode_load else ""
            text = f"{seconds(taken_s)} until {leg.decode.worker_id} took it up{running}"
            yield Candidate(cause=SlowCause.WORKER_QUEUE, part=SlowPart.ANSWER, avoidable_s=taken_s, telling=text)

    def _slow_link(self, leg: Leg, moving_s: float) -> Candidate:
        assert leg.prefill is not None
        over = "inside the machine" if leg.link is Link.BOX else "over the network"
        rate = f" at {size(leg.transferred_bytes / leg.transfer_s)}/s" if leg.transfer_s > 0 else ""
        blocks = f"{size(leg.transferred_bytes)} of KV" if leg.transferred_bytes else "KV"
        text = f"{seconds(moving_s)} for {blocks}{rate} {over}, {leg.prefill.worker_id} to {leg.decode.worker_id}"
        return Candidate(cause=SlowCause.SLOW_LINK, part=SlowPart.ANSWER, avoidable_s=moving_s, telling=text)

    # ---- between tokens ----------------------------------------------------------------------------------------------

    def _answer(self, leg: Leg) -> Iterator[Candidate]:
        """Everything that its steps took from the first to the last output of the leg."""
        own_again = self.timeline.num_preemptions * self._sample_tokens
        work = work_between(leg.first_counters, leg.last_counters, self._load(leg), own_again)
        costs = _latest(_costs_of(leg.decode_load), leg.last_costs)
        begins_ns = leg.decode_output_at_ns if leg.decode_output_at_ns is not None else leg.first_output_at_ns
        if work is None or work.num_steps == 0 or begins_ns is None or costs == UNKNOWN_COSTS:
            return
        ends_ns = leg.ended_at_ns if leg.ended_at_ns is not None else self.end_at_ns
        took_s = self._overlap_s((PhaseName.DECODE, PhaseName.FIRST_WRITE), begins_ns, ends_ns)
        for cause, share_s, why in _told(self._shares(took_s, work, leg, 0.0), work):
            if cause is not SlowCause.SLOW_STEPS or share_s >= _UNEXPLAINED_FRACTION * took_s:
                text = f"{seconds(share_s)} beside others on {leg.decode.worker_id}: {why}"
                if cause is SlowCause.SLOW_STEPS:
                    text = f"{seconds(share_s)} more than its steps should take {leg.decode.worker_id}: {why}"
                yield Candidate(cause=cause, part=SlowPart.ANSWER, avoidable_s=share_s, telling=text)

    def _gap(self) -> Iterator[Candidate]:
        gap = self.timeline.worst_gap
        if gap is None:
            return
        decode_s = self._overlap_s((PhaseName.DECODE,), gap.from_ns, gap.to_ns)
        if decode_s < _IN_DECODE_FRACTION * gap.gap_s:
            return  # a phase of its own tells of it
        typical_s = self._typical_gap_s(gap.gap_s)
        if gap.gap_s < _OUTLIER * typical_s:
            return
        leg = next((leg for leg in reversed(self.timeline.legs) if leg.routed_at_ns <= gap.from_ns), None)
        work = work_between(gap.before, gap.after, gap.load)
        if work is None or leg is None:
            return
        num_own_again = self._num_own_again(gap.to_ns, work)
        if num_own_again:
            again_s = self._shares(gap.gap_s, work, leg, typical_s).neighbour_s * num_own_again / work.num_prompt_tokens
            text = f"on {gap.worker.worker_id} {count(num_own_again, 'token')} of its own were computed again"
            yield Candidate(cause=SlowCause.PREEMPTION, part=SlowPart.GAP, avoidable_s=again_s, telling=text)
            return
        for cause, share_s, why in _told(self._shares(gap.gap_s, work, leg, typical_s), work):
            yield Candidate(
                cause=cause, part=SlowPart.GAP, avoidable_s=share_s, telling=f"on {gap.worker.worker_id} {why}"
            )

    def _num_own_again(self, at_ns: int, work: StepWork) -> int:
        """Of the prompt tokens in a gap: of a continuation that was preempted while others of the request went on."""
        if self.num_samples == 1 or not any(each.at_ns <= at_ns for each in self.timeline.preemptions):
            return 0
        return min(self._sample_tokens, work.num_prompt_tokens)

    @property
    def _sample_tokens(self) -> int:
        """What one continuation computes again, at most."""
        return self.counts.num_prompt_tokens + self.counts.num_output_tokens // max(self.num_samples, 1)

    def _typical_gap_s(self, worst_s: float) -> float:
        decode_s = sum(span.took_ns for span in self.spans if span.name is PhaseName.DECODE) / 1e9
        num_others = self.timeline.num_outputs - 2
        return max(decode_s - worst_s, 0.0) / num_others if num_others > 0 else 0.0

    # ---- shared ------------------------------------------------------------------------------------------------------

    def _shares(self, took_s: float, work: StepWork, leg: Leg, typical_s: float) -> StepShares:
        """By the latest costs; what they leave unexplained, the earlier ones must leave too."""
        latest = _latest(_costs_of(leg.decode_load), _costs_of(self._load(leg)), leg.last_costs)
        shares = self._shares_by(latest, took_s, work, typical_s)
        before = self._shares_by(_first_costs(leg.decode_load, latest), took_s, work, typical_s)
        return replace(shares, unexplained_s=min(shares.unexplained_s, before.unexplained_s))

    def _shares_by(self, costs: StepCosts, took_s: float, work: StepWork, typical_s: float) -> StepShares:
        num_own_kv_tokens = self.counts.num_prompt_tokens + self.counts.num_output_tokens // 2
        return shares_of(
            took_s,
            work,
            costs,
            num_own_kv_tokens=num_own_kv_tokens,
            num_samples=self.num_samples,
            typical_step_s=typical_s,
        )

    def _load(self, leg: Leg) -> WorkerLoad | None:
        gap = self.timeline.worst_gap
        return gap.load if gap is not None and gap.load is not None and gap.worker == leg.decode else leg.decode_load

    def _overlap_s(self, names: Container[PhaseName], begins_ns: int, ends_ns: int) -> float:
        shared = (
            min(span.ends_ns, ends_ns) - max(span.begins_ns, begins_ns) for span in self.spans if span.name in names
        )
        return sum(ns for ns in shared if ns > 0) / 1e9


def _told(shares: StepShares, work: StepWork) -> Iterator[tuple[SlowCause, float, str]]:
    steps = count(work.num_steps, "step")
    if shares.neighbour_s > 0:
        tokens = count(work.num_prompt_tokens, "prompt token")
        yield SlowCause.LONG_NEIGHBOUR, shares.neighbour_s, f"{tokens} of others were computed in its {steps}"
    if shares.crowd_s > 0:
        rows = count(max(work.rows_per_step - 1, 0), "other stream")
        yield SlowCause.CROWDED_STEPS, shares.crowd_s, f"{rows} in a step, of {steps}"
    if shares.unexplained_s > 0:
        yield SlowCause.SLOW_STEPS, shares.unexplained_s, f"nothing in {steps} takes so long"


def _chunks_s(costs: StepCosts, num_chunks: int, num_tokens: int, num_context_tokens: float) -> float:
    return num_chunks * costs.step_s(0, num_context_tokens) + costs.per_token_s * num_tokens


def _asked_load(leg: Leg) -> WorkerLoad | None:
    """Of the worker that computes the prompt, when it was asked."""
    is_split = leg.prefill is not None and leg.prefill != leg.decode
    return leg.prefill_load if is_split else leg.decode_load


def _prompt_costs(leg: Leg) -> StepCosts:
    """As they were known once it was computed: a worker learns them from what it does."""
    return _latest(_costs_of(_asked_load(leg)), leg.prompt_costs)


def _costs_of(load: WorkerLoad | None) -> StepCosts | None:
    return load.costs if load is not None else None


def _latest(*told: StepCosts | None) -> StepCosts:
    known = [costs for costs in told if costs is not None and costs != UNKNOWN_COSTS]
    return known[-1] if known else UNKNOWN_COSTS


def _first_costs(load: WorkerLoad | None, costs: StepCosts) -> StepCosts:
    """As they were known before, or `costs`."""
    return load.costs if load is not None and load.costs != UNKNOWN_COSTS else costs
