"""What the steps of one model in one stored format make a worker read and multiply.

Owns the arithmetic of work: bytes that a step must read, operations that it needs; of tensors as they are loaded, where
`step_work` has a published architecture on a device. What hardware can do at most is `core.events.WorkerLimits`.
"""

from __future__ import annotations

from dataclasses import dataclass

from relevo.core.plan import StepPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelWork:
    """A product is one multiply-add: two operations."""

    weight_bytes: int  # read by every step: all matrices, the output layer's too; of an embedding only rows are read
    products_per_token: int  # with weights, for every token
    head_products: int  # with the output layer, for every token whose logits are asked for
    attention_products: int  # for every pair of a token and a token it sees
    kv_bytes_per_token: int

    def plan_operations(self, plan: StepPlan) -> float:
        """Of one step. Logits are drawn from the last token of a row, or wanted for all of a prompt that is scored."""
        num_decodes = plan.num_decodes
        num_pairs: float = sum(plan.starts[:num_decodes]) + num_decodes
        for start, length in zip(plan.starts[num_decodes:], plan.lengths[num_decodes:], strict=True):
            num_pairs += _pairs(length, start)
        num_scored = sum([plan.lengths[place] for place in plan.scored])
        num_drawn = len(plan.num_draws) - plan.num_draws.count(0)
        return self._operations(plan.num_tokens, num_pairs, num_drawn + num_scored)

    def decode_bytes(self, num_kv_tokens: int) -> int:
        """Read by one step whose rows see `num_kv_tokens` tokens in all."""
        return self.weight_bytes + num_kv_tokens * self.kv_bytes_per_token

    def decode_operations(self, num_rows: int, num_kv_tokens: int) -> float:
        return self._operations(num_rows, num_kv_tokens, num_rows)

    def prefill_operations(self, prompt_len: int) -> float:
        """Of a whole prompt: every token sees itself and those before it; one row of logits."""
        return self._operations(prompt_len, _pairs(prompt_len, 0), 1)

    def _operations(self, num_tokens: int, num_pairs: float, num_logit_rows: int) -> float:
        with_weights = num_tokens * self.products_per_token + num_logit_rows * self.head_products
        return 2 * (with_weights + num_pairs * self.attention_products)


def _pairs(num_tokens: int, num_context: int) -> float:
    """Of a token of a chunk and a token that it sees: those before the chunk, those before it there, and itself."""
    return num_tokens * (num_context + (num_tokens + 1) / 2)
