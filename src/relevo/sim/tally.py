"""What is counted from the decisions of a world: per request who decoded it, how often it was preempted and moved.

A `DecisionLog` between the processes of a world and the log that its caller wants, if any.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from relevo.core.decisions import Decision, DecisionLog, Fact


@dataclass(slots=True)
class Tally:
    log: DecisionLog | None
    decode_worker: dict[str, str] = field(default_factory=dict)  # the last one, by request that has not ended
    num_preemptions: Counter[str] = field(default_factory=Counter)  # by request that has not ended
    num_restarts: Counter[str] = field(default_factory=Counter)
    num_evicted_blocks: Counter[str] = field(default_factory=Counter)  # by worker
    num_handoffs: int = 0

    def note(self, at_ns: int, decider: str, decision: Decision, subject: str, facts: Mapping[str, Fact]) -> None:
        match decision:
            case Decision.ROUTE:
                if subject in self.decode_worker:
                    self.num_restarts[subject] += 1
                self.decode_worker[subject] = str(facts["worker"])
            case Decision.PREEMPT:
                self.num_preemptions[subject] += 1
            case Decision.EVICT:
                self.num_evicted_blocks[decider] += int(facts["num_blocks"])
            case Decision.HAND_OVER:
                self.num_handoffs += 1
        if self.log is not None:
            self.log.note(at_ns, decider, decision, subject, facts)

    def forget(self, request_id: str) -> None:
        """It has ended, and what was counted of it was read."""
        self.decode_worker.pop(request_id, None)
        self.num_preemptions.pop(request_id, None)
        self.num_restarts.pop(request_id, None)
