"""What the HTTP side of the gateway is given: one frozen object, composed in `relevo.build`.

Owns no state and starts nothing. The Protocols name what the HTTP side uses of the text parts, the metrics and the
clock; it does not know their classes.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from relevo.core.ids import RequestId, TokenId
from relevo.core.ports import Clock
from relevo.gateway.auth import ApiKeys, Authenticator
from relevo.gateway.metering.meter import NoMeter, UsageMeter
from relevo.gateway.metering.usage_query import NoUsage, UsageSource
from relevo.gateway.ports import EngineStatus, TokenGenerator
from relevo.telemetry.latency import RequestRecord


class TextTokenizer(Protocol):
    """Text to token ids and back. Called from worker threads too."""

    @property
    def vocab_size(self) -> int: ...

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[TokenId]: ...

    def decode(self, token_ids: Sequence[TokenId]) -> str: ...

    def token_to_bytes(self, token_id: TokenId) -> bytes:
        """The bytes that one token stands for; not always whole UTF-8 characters."""
        ...


class PromptTemplate(Protocol):
    """Messages to prompt text. Raises InvalidRequest where the template refuses the messages."""

    @property
    def knows_tools(self) -> bool:
        """Whether tools that are given to `render` are in the prompt."""
        ...

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        **chat_template_kwargs: Any,
    ) -> str: ...


class Detokenizer(Protocol):
    """Token ids of one continuation to text, never half a character."""

    def add(self, token_id: TokenId) -> str: ...

    def flush(self) -> str: ...


class DetokenizerFactory(Protocol):
    """Makes one detokenizer per choice."""

    def __call__(self, *, skip_special_tokens: bool, continues_text: bool) -> Detokenizer:
        """continues_text: the tokens follow a completion's prompt, so the space before a first word is kept."""
        ...


class RequestMetrics(Protocol):
    """Where finished requests and responses are counted."""

    def request_finished(self, record: RequestRecord) -> None: ...

    def http_response(self, handler: str, method: str, status: int) -> None: ...

    def render(self, status: EngineStatus) -> tuple[bytes, str]:
        """The body of /metrics and its content type."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayContext:
    """Everything the routes need. Values are resolved: nothing here is read from settings again."""

    generator: TokenGenerator
    tokenizer: TextTokenizer
    chat_template: PromptTemplate | None  # None: the model has none, /v1/chat/completions answers 400
    make_detokenizer: DetokenizerFactory
    metrics: RequestMetrics
    clock: Clock
    model_names: tuple[str, ...]  # names clients may use; the first one is the default
    max_model_len: int  # tokens, prompt and output together
    eos_token_ids: tuple[TokenId, ...] = ()
    generation_defaults: Mapping[str, Any] = field(default_factory=dict)  # as in generation_config.json
    api_keys: Authenticator = field(default_factory=ApiKeys)  # none: open to everybody who reaches the port
    meter: UsageMeter = field(default_factory=NoMeter)
    usage: UsageSource = field(default_factory=NoUsage)
    allowed_origins: tuple[str, ...] = ()  # none: no cross-origin access from browsers
    max_body_bytes: int = 32 * 1024 * 1024
    sse_keepalive_s: float | None = None  # None: no keep-alive comments
    started_at_unix_s: int = 0  # `created` of the models listed
    affinity_headers: tuple[str, ...] = ()  # more headers that name a session
    explain_route: Callable[[RequestId], str] | None = None  # why a request went where it went
    draw_seed: Callable[[], int] = lambda: secrets.randbits(64)  # for requests that bring none
    model_hash: str = ""  # goes into `system_fingerprint`
