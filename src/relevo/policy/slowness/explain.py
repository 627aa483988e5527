"""A timeline explained: its phases, the cause of its slowness in a sentence, and what would help. Pure.

The largest time that need not have been wins, if it stands out of the part of the request that it made slow: the first
token, the answer, or the worst gap between two tokens. Otherwise it took what its own tokens take.
"""

from __future__ import annotations

from collections.abc import Sequence

from relevo.core.outcome import Cause, RequestEnd
from relevo.core.timeline import Timeline
from relevo.policy.slowness.advice import advice_for
from relevo.policy.slowness.amounts import count, seconds
from relevo.policy.slowness.candidate import Candidate, SlowPart
from relevo.policy.slowness.phases import first_token_ns, spans_of
from relevo.policy.slowness.spans import Span
from relevo.policy.slowness.steps import Steps
from relevo.policy.slowness.waits import took_s, waits
from relevo.policy.slowness.words import Explanation, Phase, PhaseName, RequestCounts, SlowCause

_OWN_S, _OWN_FRACTION = (
    0.5,
    0.5,
)  # its own prompt or output is told of if it took so long, and so much of all; arbitrary


def explain(
    timeline: Timeline,
    *,
    num_prompt_tokens: int,
    num_cached_tokens: int,
    num_output_tokens: int,
    num_samples: int = 1,
    end: RequestEnd | None = None,
    now_ns: int | None = None,
) -> Explanation:
    """`num_output_tokens`: of all samples. `end`: how it ended; None: it runs, and `now_ns` is how far it is told."""
    counts = RequestCounts(
        num_prompt_tokens=num_prompt_tokens, num_cached_tokens=num_cached_tokens, num_output_tokens=num_output_tokens
    )
    told = _Told(timeline, counts, num_samples, end, _end_at_ns(timeline, now_ns))
    candidate = told.cause()
    part_s = told.part_s(candidate.part) if candidate is not None else 0.0
    return Explanation(
        cause=told.own_cause() if candidate is None else candidate.cause,
        sentence=told.own_sentence() if candidate is None else told.sentence(candidate, part_s),
        advice=advice_for(told.own_cause()) if candidate is None else advice_for(candidate.cause, candidate.detail),
        phases=told.phases(),
        ttft_s=told.ttft_s,
        e2e_s=told.e2e_s,
        worst_gap_s=timeline.worst_gap.gap_s if timeline.worst_gap is not None else None,
    )


class _Told:
    def __init__(
        self, timeline: Timeline, counts: RequestCounts, num_samples: int, end: RequestEnd | None, end_at_ns: int
    ) -> None:
        self.timeline, self.counts, self.num_samples, self.end, self.end_at_ns = (
            timeline,
            counts,
            num_samples,
            end,
            end_at_ns,
        )
        is_complete = end is not None and end.cause is Cause.COMPLETE
        self.spans: Sequence[Span] = spans_of(timeline, end_at_ns, is_complete=is_complete)
        self.token_ns = first_token_ns(timeline, end_at_ns)
        self.e2e_s = (end_at_ns - timeline.accepted_at_ns) / 1e9
        self.ttft_s = None if self.token_ns is None else (self.token_ns - timeline.accepted_at_ns) / 1e9

    def phases(self) -> tuple[Phase, ...]:
        border_ns = self.token_ns if self.token_ns is not None else self.end_at_ns
        return tuple(
            Phase(
                name=span.name,
                begins_s=(span.begins_ns - self.timeline.accepted_at_ns) / 1e9,
                took_s=span.took_ns / 1e9,
                worker_id=span.worker_id,
                facts=span.facts,
                is_before_first_token=span.begins_ns < border_ns,
            )
            for span in self.spans
        )

    # ---- the cause ---------------------------------------------------------------------------------------------------

    def cause(self) -> Candidate | None:
        """None: nothing that could have been avoided stands out."""
        if self._is_refused():
            return Candidate(cause=SlowCause.REFUSED, part=SlowPart.FIRST_TOKEN, avoidable_s=self.e2e_s, telling="")
        border_ns = self.token_ns if self.token_ns is not None else self.end_at_ns
        steps = Steps(self.spans, self.timeline, self.counts, self.num_samples, self.end_at_ns)
        every = [*waits(self.spans, self.timeline, border_ns), *steps.candidates()]
        ended_by = self._ended_by()
        decisive = [candidate for candidate in every if candidate.cause is ended_by]
        standing = decisive or [each for each in every if each.stands_out(self.part_s(each.part), self.e2e_s)]
        return max(standing, key=lambda candidate: candidate.avoidable_s, default=None)

    def _is_refused(self) -> bool:
        if self.timeline.legs or self.timeline.let_in_at_ns is not None or self.end is None:
            return False
        waited_s = took_s([span for span in self.spans if span.name is PhaseName.LINE])
        is_own_end = self.end.cause in (Cause.CLIENT_GONE, Cause.COMPLETE)
        return not is_own_end and not (self.end.cause is Cause.CLIENT_TIMEOUT and waited_s > self.e2e_s / 2)

    def _ended_by(self) -> SlowCause | None:
        """What broke it off needs no long time to be the cause."""
        if self.end is not None and self.end.cause is Cause.WORKER_FAILED:
            return SlowCause.WORKER_LOST
        if self.end is not None and self.end.cause is Cause.ANSWER_TOO_LARGE:
            return SlowCause.SLOW_CLIENT
        return None

    def part_s(self, part: SlowPart) -> float:
        gap = self.timeline.worst_gap
        if part is SlowPart.GAP and gap is not None:
            return gap.gap_s
        if part is SlowPart.FIRST_TOKEN and self.ttft_s is not None:
            return self.ttft_s
        return self.e2e_s

    # ---- the sentence ------------------------------------------------------------------------------------------------

    def sentence(self, candidate: Candidate, part_s: float) -> str:
        if candidate.cause is SlowCause.REFUSED:
            return self._refusal()
        if candidate.part is SlowPart.GAP:
            return f"The longest gap between two tokens was {seconds(part_s)}: {candidate.telling}."
        if candidate.part is SlowPart.FIRST_TOKEN and self.ttft_s is not None:
            return f"The first token took {seconds(part_s)}, of which {candidate.telling}."
        if self.token_ns is None:
            so_far = "so far, and no token yet" if self.end is None else f"until {self._ending()}, without a token"
            return f"It took {seconds(self.e2e_s)} {so_far}; of these {candidate.telling}."
        so_far = " so far" if self.end is None else ""
        return f"The answer took {seconds(self.e2e_s)}{so_far}, of which {candidate.telling}."

    def _refusal(self) -> str:
        assert self.end is not None
        limit = f" ({self.end.limit})" if self.end.limit else ""
        waited_s = took_s([span for span in self.spans if span.name is PhaseName.LINE])
        if waited_s < 0.001:
            return f"It was turned away at the door{limit}; {count(self.timeline.num_ahead, 'request')} waited."
        return f"It was turned away after {seconds(waited_s)} in the gateway's line{limit}."

    def _ending(self) -> str:
        if self.end is None:
            return "now"
        return _ENDINGS.get(self.end.cause, "it failed")

    def own_cause(self) -> SlowCause:
        by_name = {name: took_s([span for span in self.spans if span.name is name]) for name in _OWN}
        name = max(by_name, key=lambda each: by_name[each])
        is_long = by_name[name] >= max(_OWN_S, _OWN_FRACTION * self.e2e_s)
        return _OWN[name] if is_long else SlowCause.NOTHING

    def own_sentence(self) -> str:
        counts, cause = self.counts, self.own_cause()
        computed = max(counts.num_prompt_tokens - counts.num_cached_tokens, 0)
        if cause is SlowCause.OWN_PROMPT:
            prefill = [span for span in self.spans if span.name is PhaseName.PREFILL]
            tokens = f"{count(computed, 'token')} computed, {counts.num_cached_tokens:,} cached"
            times = f"{seconds(took_s(prefill))} of {seconds(self.e2e_s)}"
            return f"{times} went to its own prompt on {prefill[0].worker_id}: {tokens}."
        if cause is SlowCause.OWN_OUTPUT:
            decode_s = took_s([span for span in self.spans if span.name is PhaseName.DECODE])
            each_s = decode_s / max(counts.num_output_tokens - 1, 1)
            tokens = count(counts.num_output_tokens, "token")
            return f"{seconds(decode_s)} of {seconds(self.e2e_s)} went to its own {tokens}, {seconds(each_s)} each."
        if self.ttft_s is None:
            ending = f"until {self._ending()}" if self.end is not None else "so far"
            return f"Nothing stands out: {seconds(self.e2e_s)} {ending}, without a token."
        tokens = count(counts.num_output_tokens, "token")
        return (
            f"Nothing stands out: the first token after {seconds(self.ttft_s)}, {tokens} after {seconds(self.e2e_s)}."
        )


_OWN = {PhaseName.PREFILL: SlowCause.OWN_PROMPT, PhaseName.DECODE: SlowCause.OWN_OUTPUT}

_ENDINGS = {
    Cause.COMPLETE: "it ended",
    Cause.CLIENT_GONE: "the client left",
    Cause.CLIENT_TIMEOUT: "its time was over",
    Cause.BUDGET_SPENT: "its budget was spent",
    Cause.KEY_ENDED: "its key ended",
    Cause.SERVER_STOPPED: "the server stopped",
}


def _end_at_ns(timeline: Timeline, now_ns: int | None) -> int:
    if timeline.ended_at_ns is not None:
        return max(timeline.ended_at_ns, timeline.accepted_at_ns)
    marks = [timeline.accepted_at_ns, timeline.prepared_at_ns, timeline.let_in_at_ns, timeline.last_output_at_ns]
    marks += [timeline.last_written_at_ns, now_ns, *(leg.routed_at_ns for leg in timeline.legs)]
    return max(at_ns for at_ns in marks if at_ns is not None)
