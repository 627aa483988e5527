"""What steps of an engine seem to take, from what its answers took: it says nothing of it itself."""

from __future__ import annotations

from dataclasses import dataclass

from relevo.core.events import UNKNOWN_COSTS, StepCosts

LEAST_TOKENS = 64  # arbitrary: shorter prompts measure the way there
_WEIGHT = 0.2  # of the newest; arbitrary


@dataclass(slots=True)
class SeenCosts:
    per_token_s: float = 0.0
    base_s: float = 0.0
    _last_done_s: float = 0.0

    def prompt_took(self, num_computed_tokens: int, begun_s: float, done_s: float) -> None:
        """While others were computed before it, it waited: what counts is the time since the last of them was done."""
        took_s = done_s - max(begun_s, self._last_done_s)
        self._last_done_s = done_s
        if num_computed_tokens >= LEAST_TOKENS and took_s > 0.0:
            self.per_token_s = _mixed(self.per_token_s, took_s / num_computed_tokens)

    def gap_took(self, num_tokens: int, took_s: float) -> None:
        """Between two pieces of a stream."""
        if num_tokens and took_s > 0.0:
            self.base_s = _mixed(self.base_s, took_s / num_tokens)

    @property
    def step_costs(self) -> StepCosts:
        """Unknown until it has computed a prompt: then none is computed beside its streams for being thought free."""
        if not self.per_token_s:
            return UNKNOWN_COSTS
        return StepCosts(base_s=self.base_s, per_token_s=self.per_token_s, per_kv_token_s=0.0)


def _mixed(old: float, new: float) -> float:
    return new if not old else old + _WEIGHT * (new - old)
