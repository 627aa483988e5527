"""Random walks through larger worlds than a search can visit: two continuations, four workers, many faults at once."""

from __future__ import annotations

from handoff_moves import check_gone, faults, progress
from handoff_world import Budget, first_world
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule


class HandoffWalk(RuleBasedStateMachine):
    """Red when some order of faults doubles a token, frees blocks under a writer, or leaves a request behind."""

    @initialize(num_workers=st.integers(1, 4), num_samples=st.integers(1, 3), max_tokens=st.integers(1, 3))
    def begin(self, num_workers: int, num_samples: int, max_tokens: int) -> None:
        budget = Budget(deaths=2, hangs=1, failures=2, ticks=3, client=1, unsplit=2)
        self.world = first_world(num_workers, budget, num_samples=num_samples, max_tokens=max_tokens)

    @rule(pick=st.integers(0, 1000), count=st.integers(1, 6))
    def things_move_on(self, pick: int, count: int) -> None:
        for _ in range(count):
            steps = list(progress(self.world))
            if steps:
                self.world = steps[pick % len(steps)][1]

    @rule(pick=st.integers(0, 1000))
    def something_breaks(self, pick: int) -> None:
        steps = list(faults(self.world))
        if steps:
            self.world = steps[pick % len(steps)][1]

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        for _ in range(500):
            steps = list(progress(self.world))
            if not steps:
                break
            self.world = steps[0][1]
        assert self.world.state.is_gone
        check_gone(self.world)


TestHandoffWalk = HandoffWalk.TestCase
TestHandoffWalk.settings = settings(max_examples=120, stateful_step_count=30, deadline=None)
