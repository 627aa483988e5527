"""The baton: everything a worker needs to continue a request, which it knows, as if nothing had moved.

Nothing is copied that can be derived: penalty counts come from prompt and output tokens, the position of the
counter-based random generator is the number of output tokens, the key is (seed, sample index). The detokeniser
and stop-string tails stay in the gateway, which does not change when the worker does (docs/adr/0003).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from relevo.core.ids import RequestId, TokenId, WorkerId
from relevo.core.request import FinishReason


class SampledToken(NamedTuple):
    """A tuple, as everything that is made once per token: quick to make, and an array on the wire."""

    token_id: TokenId
    logprob: float | None = None  # natural log, of the distribution before temperature and penalties
    top_logprobs: tuple[tuple[TokenId, float], ...] = ()  # best first


@dataclass(slots=True)
class SampleState:
    """One of the `n` continuations of a request."""

    sample_index: int
    output_token_ids: list[TokenId] = field(default_factory=list)
    finish_reason: FinishReason | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillFacts:
    """What only the worker that computed the prompt knows; merged into `usage` and the metrics by the gateway."""

    worker_id: WorkerId
    num_prompt_tokens: int
    num_cached_tokens: int  # prompt tokens that no worker had to compute; a transfer is never counted as a hit
    queue_s: float  # accepted by that worker -> first scheduled
    prefill_s: float  # first scheduled -> first token sampled
    num_chunks: int = 1  # steps that computed some of it


@dataclass(frozen=True, slots=True, kw_only=True)
class KVTicket:
    """What a prefill worker gives for KV that it keeps until the decode worker fetches it, and only for so long: a
    decode worker that comes later may read another request's. It then computes the prompt itself.

    The decode worker draws the first token, too: it is asked for all that the client asked for.
    """

    name: str  # of this handoff; never used again
    fields: bytes  # for the decode worker's engine, JSON; empty: nothing is kept
    use_by_ns: int | None  # gateway clock; None: it waits for the decode worker, however long
    facts: PrefillFacts | None = None  # None: the decode worker knows

    def is_good(self, now_ns: int) -> bool:
        return bool(self.fields) and (self.use_by_ns is None or now_ns < self.use_by_ns)


@dataclass(frozen=True, slots=True, kw_only=True)
class Baton:
    """To the worker that reserved room for the request, and has it since: its continuations, and how much of its KV
    lies in the reserved blocks."""

    request_id: RequestId
    samples: tuple[SampleState, ...]
    num_sealed_tokens: int  # the KV of these tokens is complete on the receiver
    ticket: KVTicket | None = None  # it has yet to fetch that KV, and nothing was sampled yet
