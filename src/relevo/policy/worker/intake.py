"""What a worker accepts: the scheduler's configuration and the checks made before anything is queued.

A request that can never run is rejected at once, with a reason the client can act on, and never queued.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from relevo.core import errors
from relevo.core.baton import SampleState
from relevo.core.ids import TokenId, WorkerId
from relevo.core.kv import MAX_BLOCK_ID, Reservation
from relevo.core.request import EngineRequest
from relevo.core.role import Role
from relevo.policy.worker.content import TOKENS, TokenContent
from relevo.policy.worker.table_rules import (
    TableRule,
    num_blocks_of,
    num_fork_blocks,
    num_pool_tokens,
    num_tail_blocks,
)

MAX_CONTINUATIONS = 1024  # arbitrary: of a request; each takes memory before it has a slot


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    worker_id: WorkerId
    epoch: int
    first_block_id: int
    num_blocks: int
    num_arena_blocks: int = MAX_BLOCK_ID + 1  # of all workers that map it; default: whatever is asked for
    block_size: int  # tokens
    max_batched_tokens: int  # of one step, decodes and prompts together
    max_prefill_tokens: int  # of one step while decodes run; 0: see policy.worker.chunking.prefill_budget
    max_running: int  # continuations that run here or have room reserved here; remote prefills do not count
    max_model_len: int  # prompt and outputs, tokens
    vocab_size: int = 2**32  # the model computes ids below it; default: whatever comes
    enable_prefix_caching: bool = True
    tenant_weights: Mapping[str, float] = field(default_factory=dict)  # of shares; 1 for every other tenant
    content: TokenContent = TOKENS
    itl_target_s: float = 0.0  # prompts beside decodes take what keeps a step below it, by measured costs; 0: no target
    more_groups: tuple[TableRule, ...] = ()  # KV groups after the first, which keeps every token

    @property
    def num_pool_tokens(self) -> int:
        """The longest sequence that fits the empty pool."""
        return num_pool_tokens(self.more_groups, self.num_blocks, self.block_size, self.max_batched_tokens)

    def num_blocks_for(self, num_tokens: int) -> int:
        """Blocks of all groups that a sequence of so many tokens takes when it starts."""
        return num_blocks_of(self.more_groups, num_tokens, self.block_size, self.max_batched_tokens)


def role_prefill_tokens(role: Role, config: SchedulerConfig) -> int:
    """Prompt tokens that a step of this role may compute beside decodes. A share is one of the step; who has the whole
    of one of the two has what the operator set."""
    if not (role.prefill and role.decode and role.hands_over):
        return config.max_prefill_tokens
    share = int(config.max_batched_tokens * role.prefill_fraction) // config.block_size * config.block_size
    return min(config.max_prefill_tokens, max(config.block_size, share))


@dataclass(frozen=True, slots=True)
class Rejected:
    code: str  # of core.errors
    reason: str  # one sentence


NO_ROOM = Rejected(errors.HandoffFailed.code, "No room is reserved for the request on this worker.")


def num_blocks_for(num_tokens: int, block_size: int) -> int:
    return -(-num_tokens // block_size)


def num_copy_blocks(
    request: EngineRequest, num_slots: int, block_size: int, num_left: int, more_groups: Sequence[TableRule] = ()
) -> int:
    """Copies of a partial last prompt block, in each KV group, and of states that `num_slots` continuations need beside
    the first one's. `num_left`: blocks of the empty pool beside the prompt.

    No more than the empty pool has beside the prompt: a continuation without one starts when another has ended.
    """
    num_prompt = len(request.prompt_token_ids)
    num_each = (num_prompt % block_size > 0) + num_fork_blocks(more_groups, num_prompt, block_size)
    return num_each * min(num_slots - 1, num_left // num_each) if num_each else 0


def max_outputs(request: EngineRequest, config: SchedulerConfig, *, bounded_by_pool: bool) -> int:
    """Output tokens after which a continuation ends with LENGTH.

    The last output token is never computed, so a continuation alone in the pool can draw one token more than fits.
    """
    num_prompt = len(request.prompt_token_ids)
    limit = min(request.sampling.max_tokens, config.max_model_len - num_prompt)
    return min(limit, config.num_pool_tokens + 1 - num_prompt) if bounded_by_pool else limit


def check_request(request: EngineRequest, config: SchedulerConfig) -> Rejected | None:
    num_prompt = len(request.prompt_token_ids)
    if num_prompt == 0:
        return Rejected(errors.InvalidRequest.code, "The prompt has no tokens; send at least one.")
    if request.sampling.max_tokens < 1 or not 1 <= request.sampling.n <= MAX_CONTINUATIONS:
        reason = f"max_tokens must be at least 1, and n from 1 to {MAX_CONTINUATIONS}."
        return Rejected(errors.InvalidRequest.code, reason)
    if num_prompt >= config.max_model_len:
        return Rejected(
            errors.ContextLengthExceeded.code,
            f"The prompt has {num_prompt} tokens and the context length is {config.max_model_len}; at least one token "
            "must be left for the output.",
        )
    return check_ids(request.prompt_token_ids, config)


def check_ids(token_ids: Sequence[TokenId], config: SchedulerConfig) -> Rejected | None:
    """A step must not meet an id that the model has no embedding for."""
    token_id = config.content.unknown_id(token_ids, config.vocab_size)
    if token_id is None:
        return None
    return Rejected(
        errors.InvalidRequest.code,
        f"The prompt holds token id {token_id}, but the model has {config.vocab_size} tokens.",
    )


def check_fits(num_tokens: int, config: SchedulerConfig) -> Rejected | None:
    """`num_tokens` tokens must fit the empty pool."""
    if num_tokens <= config.num_pool_tokens:
        return None
    return Rejected(
        errors.ContextLengthExceeded.code,
        f"The request needs KV room for {num_tokens} tokens and the worker has room for {config.num_pool_tokens}.",
    )


def check_local(request: EngineRequest, samples: Sequence[SampleState], config: SchedulerConfig) -> Rejected | None:
    """Can the request, with what it has emitted already, run here alone?"""
    rejected = check_request(request, config)
    if rejected is not None:
        return rejected
    num_prompt = len(request.prompt_token_ids)
    rejected = check_fits(num_prompt + 1, config)
    return rejected or (check_samples(request, samples, config) if samples else None)


def check_samples(request: EngineRequest, samples: Sequence[SampleState], config: SchedulerConfig) -> Rejected | None:
    """Can continuations of which tokens were drawn elsewhere go on here?"""
    indices = {sample.sample_index for sample in samples}
    if len(indices) < len(samples) or not indices <= set(range(request.sampling.n)):
        reason = f"Continuations are numbered from 0 to {request.sampling.n - 1}, each once."
        return Rejected(errors.InvalidRequest.code, reason)
    for sample in samples:
        if (rejected := check_ids(sample.output_token_ids, config)) is not None:
            return rejected
    live = [len(sample.output_token_ids) for sample in samples if sample.finish_reason is None]
    if not live:
        return Rejected(errors.InvalidRequest.code, "Every continuation of the request has finished already.")
    if max(live) >= max_outputs(request, config, bounded_by_pool=True):
        return Rejected(errors.ContextLengthExceeded.code, f"No token is left after the {max(live)} already emitted.")
    return None


def check_reserve(request: EngineRequest, config: SchedulerConfig) -> Rejected | None:
    return check_request(request, config) or check_fits(len(request.prompt_token_ids) + 1, config)


def check_prefill(
    request: EngineRequest, reservation: Reservation, zero_copy: bool, config: SchedulerConfig
) -> Rejected | None:
    rejected = check_request(request, config)
    num_prompt = len(request.prompt_token_ids)
    if rejected is None and (fault := reservation.fault) is not None:
        reason = f"The reservation of {reservation.request_id} is not one of a worker. {fault}"
        return Rejected(errors.HandoffFailed.code, reason)
    if rejected is None and not zero_copy:
        kept = kept_rules(config, reservation)
        rejected = check_fits(num_prompt, config if kept is config.more_groups else replace(config, more_groups=kept))
    if rejected is None and not _is_room_of(request, reservation, config):
        rejected = Rejected(
            errors.HandoffFailed.code,
            f"The reservation of {reservation.request_id} with {len(reservation.block_ids)} blocks of "
            f"{reservation.block_size} tokens, "
            f"{reservation.num_hit_tokens} tokens of them hits, is not room for {request.request_id} with a prompt of "
            f"{num_prompt} tokens.",
        )
    return rejected


def _is_room_of(request: EngineRequest, reservation: Reservation, config: SchedulerConfig) -> bool:
    num_prompt, size = len(request.prompt_token_ids), reservation.block_size
    num_found, groups = reservation.num_found_tokens, config.more_groups
    if size != config.block_size:
        if any(rule.num_state_blocks for rule in groups):  # blocks of states are not cut
            return False
        groups = tuple(rule.of_size(size) for rule in groups)
    num_blocks = num_blocks_for(num_prompt, size) + num_tail_blocks(groups, num_prompt, num_found)
    return (
        reservation.request_id == request.request_id
        and len(reservation.block_ids) == num_blocks
        and reservation.num_hit_tokens <= num_prompt
        and num_found % size == 0
    )


def kept_rules(config: SchedulerConfig, reservation: Reservation) -> tuple[TableRule, ...]:
    """Of the KV groups after the first, while a prompt is computed for that room."""
    if reservation.block_size == config.block_size:
        return config.more_groups
    return tuple(rule.kept_for(reservation.block_size) for rule in config.more_groups)
