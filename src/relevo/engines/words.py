"""What an engine is asked and what it says, whichever engine it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from relevo.core.baton import SampledToken
from relevo.core.errors import StartError, WorkerError
from relevo.core.ids import TokenId
from relevo.core.request import FinishReason, SamplingParams


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineAsk:
    """One continuation of one prompt. `name` is drawn by us; nothing of a client's is in `fields`."""

    name: str
    model: str
    token_ids: Sequence[TokenId]
    sampling: SamplingParams
    max_tokens: int  # of this ask; `sampling` has that of the request
    min_tokens: int = 0
    stop_token_ids: tuple[TokenId, ...] = ()
    seed: int = 0
    salt: str = ""
    fields: Mapping[str, Any] = field(default_factory=dict)  # of the handoff dialect


class Piece(NamedTuple):
    """What one event of a stream brings."""

    tokens: tuple[SampledToken, ...] = ()
    finish_reason: FinishReason | None = None
    num_cached_tokens: int | None = None


class EngineFailed(WorkerError):
    """The engine answered, and not with tokens. `status`: of HTTP; 0: the connection broke or the answer made no
    sense."""

    def __init__(self, message: str, *, status: int = 0) -> None:
        super().__init__(message)
        self.status = status

    @property
    def is_final(self) -> bool:
        """Another engine would say the same."""
        return self.status in (400, 413, 422)


class NotFitting(StartError):
    """What is reached there cannot be a worker of this server; the message says what to change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFacts:
    """What an engine says of itself. Empty and 0: it does not say."""

    version: str = ""
    model: str = ""
    served_names: tuple[str, ...] = ()
    max_model_len: int = 0
    block_size: int = 0
    num_blocks: int = 0
    kv_dtype: str = ""
    tensor_parallel_size: int = 0
    role: str = ""  # "prefill", "decode"
    started_at: str = ""  # differs between two processes behind one address
    follows_grammars: bool = False

    def mismatch(self, other: EngineFacts) -> str:
        """Why the two cannot hand KV to each other, in words; empty: they can."""
        for name, words in _COMPARED.items():
            mine, theirs = getattr(self, name), getattr(other, name)
            if mine and theirs and mine != theirs:
                return f"{words} {mine} here, {theirs} there"
        return ""


_COMPARED = {
    "version": "engine version",
    "model": "model",
    "max_model_len": "longest context",
    "block_size": "block size",
    "kv_dtype": "dtype of the KV cache",
    "tensor_parallel_size": "tensor parallel size",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLoad:
    """From its metrics, as far as it tells."""

    num_running: int = 0
    num_waiting: int = 0
    cache_use: float = 0.0
    num_prompt_tokens: int = 0  # since its start, so the next
    num_generation_tokens: int = 0
    num_preemptions: int = 0
    num_prefix_queries: int = 0
    num_prefix_hits: int = 0
    started_at: str = ""


class EngineProtocol(Protocol):
    """One kind of engine: paths, bodies, answers. No state, no I/O."""

    @property
    def generate_path(self) -> str: ...
    @property
    def abort_path(self) -> str: ...
    @property
    def health_path(self) -> str: ...
    @property
    def fact_paths(self) -> tuple[str, ...]: ...  # read by `facts`
    @property
    def load_path(self) -> str: ...
    @property
    def can_score_prompts(self) -> bool: ...

    def body(self, ask: EngineAsk, *, stream: bool) -> dict[str, Any]: ...

    def piece(self, event: bytes, ask: EngineAsk, num_before: int) -> Piece | None:
        """Of one event of a stream; None: it is its end. `num_before`: tokens of it so far. Raises EngineFailed."""
        ...

    def abort_bodies(self, names: Sequence[str]) -> list[dict[str, Any]]: ...

    def facts(self, answers: Mapping[str, tuple[int, bytes]]) -> EngineFacts:
        """Of status and body by path. Raises NotFitting."""
        ...

    def load(self, body: bytes) -> EngineLoad: ...

    def failure(self, status: int, body: bytes) -> EngineFailed: ...
