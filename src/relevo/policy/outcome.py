"""What a step brought: tokens with their ends, and prompt prefixes that are ready to travel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from relevo.core.baton import PrefillFacts, SampledToken
from relevo.core.events import TokenOutput
from relevo.core.ids import BlockId, RequestId, WorkerId
from relevo.core.kv import Reservation
from relevo.policy.legs import Branch, Leg
from relevo.policy.stopping import finish_reason

NS_PER_S = 1e9


@dataclass(frozen=True, slots=True)
class ComputedPrefix:
    """Progress of a prefill leg: the KV of prompt tokens [0, num_tokens) lies in `block_ids`, one per S tokens.

    `num_tokens` is a multiple of the block size, or the whole prompt when `is_last`.
    """

    request_id: RequestId
    reservation: Reservation
    num_tokens: int
    block_ids: tuple[BlockId, ...]
    is_last: bool


@dataclass(frozen=True, slots=True)
class StepOutcome:
    outputs: tuple[TokenOutput, ...]
    prefixes: tuple[ComputedPrefix, ...]


def take_tokens(branch: Branch, sampled: Sequence[SampledToken], worker_id: WorkerId, now_ns: int) -> list[TokenOutput]:
    """Append one token to each sample of the branch and decide which of them end."""
    leg = branch.leg
    outputs = []
    for sample, token in zip(branch.samples, sampled, strict=True):
        sample.output_token_ids.append(token.token_id)
        sample.finish_reason = finish_reason(leg.request, sample.output_token_ids, leg.max_outputs)
        facts = prefill_facts(leg, worker_id, now_ns) if leg.owes_facts else None
        leg.owes_facts = False
        outputs.append(TokenOutput(leg.request.request_id, sample.sample_index, (token,), sample.finish_reason, facts))
    return outputs


def prefill_facts(leg: Leg, worker_id: WorkerId, now_ns: int) -> PrefillFacts:
    first_ns = leg.first_scheduled_at_ns if leg.first_scheduled_at_ns is not None else now_ns
    return PrefillFacts(
        worker_id=worker_id,
        num_prompt_tokens=leg.num_prompt_tokens,
        num_cached_tokens=leg.num_cached_tokens,
        queue_s=(first_ns - leg.accepted_at_ns) / NS_PER_S,
        prefill_s=(now_ns - first_ns) / NS_PER_S,
    )


def computed_prefix(branch: Branch, block_size: int) -> ComputedPrefix | None:
    """The prefix to announce after the branch of a prefill leg advanced; None if no new whole block is complete."""
    leg = branch.leg
    assert leg.reservation is not None
    is_last = branch.num_computed == leg.num_prompt_tokens
    num_blocks = branch.num_computed // block_size
    if not is_last and num_blocks == leg.num_reported_blocks:
        return None
    leg.num_reported_blocks = num_blocks
    num_tokens = branch.num_computed if is_last else num_blocks * block_size
    block_ids = tuple(branch.block_ids if is_last else branch.block_ids[:num_blocks])
    return ComputedPrefix(leg.request.request_id, leg.reservation, num_tokens, block_ids, is_last)
