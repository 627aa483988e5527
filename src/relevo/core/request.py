"""What a request asks of an engine: token ids in, sampling parameters, nothing about text or HTTP.

Text (tokenisation, stop strings, detokenisation) belongs to the gateway, see docs/adr/0003.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from relevo.core.ids import RequestId, TokenId


class FinishReason(StrEnum):
    STOP = "stop"  # end-of-sequence token, stop token id, or (decided by the gateway) a stop string
    LENGTH = "length"  # max_tokens or the model's context length
    ABORT = "abort"
    ERROR = "error"


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How the next token is drawn. Fully resolved: the gateway filled in defaults and drew a seed."""

    max_tokens: int  # >= 1
    seed: int  # unsigned 64 bit; always set, so that a request can continue on another worker
    n: int = 1
    temperature: float = 1.0  # 0 is greedy
    top_k: int = 0  # 0 is off
    top_p: float = 1.0
    min_p: float = 0.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: dict[int, float] = field(default_factory=dict)
    num_logprobs: int | None = None  # None: no logprobs; 0: of the sampled token only; k: and the k best
    num_prompt_logprobs: int | None = None  # the same of the prompt's tokens; all of it is computed then
    stop_token_ids: tuple[TokenId, ...] = ()
    min_tokens: int = 0
    ignore_eos: bool = False
    grammar: str | None = None  # that the output must be of, from its first token on: as llguidance serialises one


BATCH_PRIORITY = 2**32  # added to the priority of batch requests: workers start them last and preempt them first


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceTerms:
    """What the client asked of the service, for the gateway's door. A worker only reads `is_batch`."""

    tenant: str = ""  # whose share of the service it takes; empty: that of all clients without an API key
    is_batch: bool = False  # only uses room that no other request wants, and gives it back
    timeout_s: float | None = None  # accepted -> last token; later is of no use to the client
    ttft_s: float | None = None  # objective for the first token
    tpot_s: float | None = None  # objective for the mean gap between tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineRequest:
    """A request as workers see it. Immutable; what changes while it runs is in `baton.SampleState`."""

    request_id: RequestId
    prompt_token_ids: tuple[TokenId, ...]  # at least one
    sampling: SamplingParams
    eos_token_ids: tuple[TokenId, ...] = ()
    salt: bytes = b""  # tenant and cache_salt; requests with different salts never share a block
    priority: int = 0  # lower runs first
    arrived_at_ns: int = 0  # gateway clock
    session: bytes = b""  # see policy.routing.affinity; a preference of the router, nothing that a worker acts on
    terms: ServiceTerms = ServiceTerms()
