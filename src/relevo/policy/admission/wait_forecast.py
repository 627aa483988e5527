"""How long a request will wait in line, and how far to trust that.

Owns what is learned: the rate at which the line moves, output tokens, seconds that a request keeps its slot, seconds
from sending to the first token, and the error of earlier predictions. Does not know limits."""

from __future__ import annotations

from dataclasses import dataclass, field

from relevo.policy.admission.room import RoomView
from relevo.policy.admission.service_rate import Allowance, DrainRate, RunningMean
from relevo.policy.admission.waiting_line import Ticket, WaitingLine


@dataclass(slots=True)
class WaitForecast:
    drain: DrainRate = field(default_factory=DrainRate)
    output_tokens: RunningMean = field(default_factory=RunningMean)  # of a continuation
    residence_s: RunningMean = field(default_factory=RunningMean)  # first token -> end
    worker_s: RunningMean = field(default_factory=RunningMean)  # sent -> first token, of those that were in line
    allowance: Allowance = field(default_factory=Allowance)

    def wait_s(self, line: WaitingLine, ticket: Ticket, outlook: RoomView) -> float:
        """Seconds in line for a ticket like this one: until its turn, and until it can decode."""
        ahead_tokens = line.tokens_ahead(ticket.tenant, ticket.level, ticket.cost_tokens, ticket.priority)
        rate = self.drain.tokens_per_s() or outlook.prompt_tokens_per_s
        turn_s = ahead_tokens / rate if rate > 0.0 else 0.0
        room_s = self._decode_room_s(line, ahead_tokens, ticket, turn_s, outlook)
        if ticket.level[1] == 0:  # one with a granted priority may get the slot of a stream that has not ended
            room_s = max(room_s, outlook.slot_in_s - outlook.queue_s - outlook.own_s)
        return max(turn_s, room_s)

    def _decode_room_s(
        self, line: WaitingLine, ahead_tokens: float, ticket: Ticket, turn_s: float, outlook: RoomView
    ) -> float:
        """Until a slot is free at the end of its prefill, by Little's law: those who decode leave at a known rate."""
        residence_s = self.residence_s.value
        if residence_s is None or outlook.num_running == 0:
            return 0.0
        waiting_tokens = sum(line.backlog_tokens(is_batch=is_batch) for is_batch in (False, True))
        num_ahead = len(line) * ahead_tokens / waiting_tokens if waiting_tokens else 0.0
        num_missing = num_ahead + 1 - outlook.num_free_slots
        leaving_per_s = outlook.num_running / max(residence_s, 1e-3)
        prefill_end_s = turn_s + outlook.queue_s + outlook.own_s
        if num_missing <= leaving_per_s * prefill_end_s:
            return 0.0
        return max(0.0, num_missing / leaving_per_s - outlook.queue_s - outlook.own_s)

    def took(self, ticket: Ticket, predicted_at_ns: int, sent_at_ns: int, now_ns: int) -> None:
        """The first token is there, of a request that was predicted to wait."""
        self.worker_s.observe((now_ns - sent_at_ns) / 1e9)
        entered_at_ns = ticket.entered_at_ns
        self.allowance.observe((predicted_at_ns - entered_at_ns) / 1e9, (now_ns - entered_at_ns) / 1e9)

    def waited_in_vain(self, ticket: Ticket, predicted_at_ns: int, now_ns: int) -> None:
        """It left the line without a first token; by then it was late already."""
        entered_at_ns = ticket.entered_at_ns
        at_least_s = (now_ns - entered_at_ns) / 1e9 + (self.worker_s.value or 0.0)
        self.allowance.observe((predicted_at_ns - entered_at_ns) / 1e9, at_least_s)
