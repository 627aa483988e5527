"""What a step brought: tokens with their ends, and prompt prefixes that are ready to travel."""

from __future__ import annotations

from collections import abc
from dataclasses import dataclass

from relevo.core.baton import PrefillFacts, SampledToken
from relevo.core.events import TokenOutput
from relevo.core.ids import BlockId, RequestId, WorkerId
from relevo.core.kv import Reservation
from relevo.policy.worker.stopping import finish_reason
from relevo.policy.worker.worker_requests import Sequence, WorkerRequest

NS_PER_S = 1e9


@dataclass(frozen=True, slots=True)
class ComputedPrefix:
    """Progress of a remote prefill: the KV of prompt tokens [0, num_tokens) lies in `block_ids`, one per S tokens.

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


def take_tokens(
    sequence: Sequence, sampled: abc.Sequence[SampledToken], worker_id: WorkerId, now_ns: int
) -> list[TokenOutput]:
    """Append one token to each sample of the sequence and decide which of them end."""
    entry = sequence.entry
    outputs = []
    for sample, token in zip(sequence.samples, sampled, strict=True):
        sample.output_token_ids.append(token.token_id)
        sample.finish_reason = finish_reason(entry.request, sample.output_token_ids, entry.max_outputs)
        facts = prefill_facts(entry, worker_id, now_ns) if entry.owes_facts else None
        entry.owes_facts = False
        outputs.append(
            TokenOutput(entry.request.request_id, sample.sample_index, (token,), sample.finish_reason, facts)
        )
    return outputs


def prefill_facts(entry: WorkerRequest, worker_id: WorkerId, now_ns: int) -> PrefillFacts:
    first_ns = entry.first_scheduled_at_ns if entry.first_scheduled_at_ns is not None else now_ns
    return PrefillFacts(
        worker_id=worker_id,
        num_prompt_tokens=entry.num_prompt_tokens,
        num_cached_tokens=entry.num_cached_tokens,
        queue_s=(first_ns - entry.accepted_at_ns) / NS_PER_S,
        prefill_s=(now_ns - first_ns) / NS_PER_S,
    )


def computed_prefix(sequence: Sequence, block_size: int) -> ComputedPrefix | None:
    """The prefix to announce after the sequence of a remote prefill advanced; None without a new whole block."""
    entry = sequence.entry
    assert entry.reservation is not None
    is_last = sequence.num_computed == entry.num_prompt_tokens
    num_blocks = sequence.num_computed // block_size
    if not is_last and num_blocks == entry.num_reported_blocks:
        return None
    entry.num_reported_blocks = num_blocks
    num_tokens = sequence.num_computed if is_last else num_blocks * block_size
    block_ids = tuple(sequence.block_ids if is_last else sequence.block_ids[:num_blocks])
    return ComputedPrefix(entry.request.request_id, entry.reservation, num_tokens, block_ids, is_last)
