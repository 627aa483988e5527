"""The state of a request's part on one worker: a `WorkerRequest`, and the `Sequence`es (block tables) that compute it.

Plain data, changed by `policy.worker.scheduler`, `policy.worker.block_tables` and `policy.worker.core` only.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from relevo.core.baton import SampleState
from relevo.core.ids import NO_PEER, BlockHash, BlockId, PeerId, SequenceId, TokenId
from relevo.core.request import EngineRequest
from relevo.policy.worker.group_tables import GroupTable
from relevo.policy.worker.remote_prefill import RemotePrefill


class WorkKind(Enum):
    GENERATE = "generate"  # computes what is missing here and decodes here
    PREFILL_ONLY = "prefill_only"  # computes the prompt for another worker
    AWAIT_KV = "await_kv"  # waits for room, then for the KV of a prompt that another worker computes


@dataclass(slots=True, eq=False, kw_only=True)
class WorkerRequest:
    """One request on this worker, from acceptance until the worker holds nothing of it."""

    request: EngineRequest
    kind: WorkKind
    arrival: int  # order of acceptance on this worker
    accepted_at_ns: int
    max_outputs: int  # per continuation, tokens
    owes_facts: bool  # the first output has to carry PrefillFacts
    owner: PeerId = NO_PEER  # the gateway that asked, once the request is accepted
    remote: RemotePrefill | None = None  # the prompt is computed for another worker
    first_scheduled_at_ns: int | None = None
    num_chunks: int = 0  # steps that computed some of it before its first token
    num_cached_tokens: int = 0
    sequences: list[Sequence] = field(default_factory=list)  # running, waiting or held for a transfer
    num_prompt_tokens: int = field(init=False)

    def __post_init__(self) -> None:
        self.num_prompt_tokens = len(self.request.prompt_token_ids)

    @property
    def is_remote_prefill(self) -> bool:
        return self.remote is not None

    @property
    def is_foreign(self) -> bool:
        """Computes straight into the receiver's blocks."""
        return self.remote is not None and self.remote.path.zero_copy


@dataclass(slots=True, eq=False, kw_only=True)
class Sequence:
    """A block table and its tokens. Serves several samples while they share every token, one after the first draw."""

    parent: WorkerRequest
    samples: tuple[SampleState, ...]
    token_ids: list[TokenId]  # prompt, then outputs
    hashes: list[BlockHash] = field(default_factory=list)  # of the leading full blocks, as far as known
    block_ids: list[BlockId] = field(default_factory=list)
    num_computed: int = 0  # KV of token_ids[:num_computed] lies in block_ids
    num_registered_blocks: int = 0
    more: list[GroupTable] = field(default_factory=list)  # of the KV groups after the first
    copies: list[tuple[BlockId, BlockId]] = field(default_factory=list)  # made before the next row; sources are held
    num_expected_hits: int = 0  # tokens found in the prefix cache on arrival: an estimate
    sequence_id: SequenceId = 0  # under which the runner knows it; 0: it does not
    num_told_blocks: int = 0  # of block_ids, that the runner knows
    has_new_blocks: bool = False  # since then, in any table
    is_running: bool = False
    is_in_step: bool = False  # between plan and commit
    is_dropped: bool = False
    is_short: bool = False  # waits because blocks are lacking
    num_passed_blocks: int = 0  # that others took meanwhile

    @property
    def key(self) -> tuple[int, int, int]:
        """Order of service: priority, arrival, sample."""
        return (self.parent.request.priority, self.parent.arrival, self.samples[0].sample_index)

    @property
    def is_scored(self) -> bool:
        """What the model finds of the prompt's tokens is still to be told, so all of them are computed, here: what is
        cached of them, or sealed, is not read."""
        wanted = self.parent.request.sampling.num_prompt_logprobs is not None
        return wanted and self.parent.owes_facts and not self.samples[0].output_token_ids

    @property
    def num_blocks(self) -> int:
        return len(self.block_ids) + sum(len(table.held) for table in self.more)

    @property
    def num_remaining(self) -> int:
        return len(self.token_ids) - self.num_computed

    @property
    def is_decoding(self) -> bool:
        """Running, and only its last output token is not computed yet."""
        computed = self.num_computed
        return self.is_running and computed >= self.parent.num_prompt_tokens and computed + 1 == len(self.token_ids)
