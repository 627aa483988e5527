"""The words of `relevo check`: what a check is, what it may need of a server, and how it can end.

Owns no check and no I/O. A check is a coroutine over a `CheckContext` that returns if the server did what was expected,
raises `Mismatch` if it did not and `Skip` if that cannot be told.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from relevo.check.context import CheckContext
    from relevo.check.exchange import Exchange


class Level(StrEnum):
    """MUST: the API reference or a standard says so, or answers are wrong otherwise. SHOULD: good practice."""

    MUST = "must"
    SHOULD = "should"


class Group(StrEnum):
    SHAPE = "shape"
    TOOLS = "tools"
    STRUCTURED = "structured"
    REASONING = "reasoning"
    RESPONSES = "responses"
    MESSAGES = "messages"
    STREAM = "stream"
    SSE = "sse"
    STOP = "stop"
    LOGPROBS = "logprobs"
    CHOICES = "choices"
    SAMPLING = "sampling"
    USAGE = "usage"
    LIMITS = "limits"
    ERRORS = "errors"
    CANCEL = "cancel"
    UNICODE = "unicode"
    CONCURRENCY = "concurrency"
    ORACLE = "oracle"
    HOSTILE = "hostile"
    TENANTS = "tenants"
    CHAOS = "chaos"


class Need(StrEnum):
    """What a server may lack without being at fault, as long as it says so: the check is skipped then."""

    CHAT = "/v1/chat/completions"
    COMPLETIONS = "/v1/completions"
    CHAT_LOGPROBS = "logprobs of chat completions"
    COMPLETION_LOGPROBS = "logprobs of completions"
    CHOICES = "several choices (n > 1)"
    ECHO = "echo"
    TOOLS = "tools"
    FORCED_TOOL = "a forced tool call"
    REQUIRED_TOOL = "tool_choice required"
    RESPONSES = "/v1/responses"
    RESPONSES_CALL = "a forced call of /v1/responses"
    STORED_RESPONSES = "stored responses"
    INPUT_TOKENS = "/v1/responses/input_tokens"
    MESSAGES = "/v1/messages"
    MESSAGES_CALL = "a forced call of /v1/messages"
    COUNT_TOKENS = "/v1/messages/count_tokens"
    JSON_OBJECT = "response_format json_object"
    JSON_SCHEMA = "response_format json_schema"
    STRUCTURED_OUTPUTS = "structured_outputs"
    LOGIT_BIAS = "logit_bias"
    IGNORE_EOS = "ignore_eos"
    TOKENIZE = "/tokenize"
    CACHED_TOKENS = "usage.prompt_tokens_details.cached_tokens"
    RUNNING_METRIC = "a metric of running requests"
    KV_METRIC = "a metric of KV cache usage"
    CONTEXT_LENGTH = "a context length in /v1/models"
    API_KEY = "an API key (--api-key)"
    OTHER_KEY = "a key of another tenant (--other-api-key)"
    ORACLE = "an oracle (--oracle)"
    PROCESSES = "processes to disturb (--processes or --chaos-command)"


@dataclass(frozen=True, slots=True)
class Check:
    """`expects` and `why` are sentences a maintainer of any stack can judge; `source` says who demands it."""

    id: str
    group: Group
    level: Level
    expects: str
    why: str
    source: str
    needs: tuple[Need, ...]
    run: Callable[[CheckContext], Awaitable[None]] = field(compare=False)


def check(
    id: str,
    expects: str,
    *,
    why: str,
    source: str,
    needs: Sequence[Need] = (),
    level: Level = Level.MUST,
) -> Callable[[Callable[[CheckContext], Awaitable[None]]], Check]:
    """Declares a check; its group is what stands before the dot of `id`."""
    group = Group(id.partition(".")[0])

    def declare(run: Callable[[CheckContext], Awaitable[None]]) -> Check:
        return Check(id, group, level, expects, why, source, tuple(needs), run)

    return declare


class Mismatch(Exception):
    """The server did something else. `got` says what; `expected` is more exact than the check's own sentence."""

    def __init__(self, got: str, *, expected: str = "", exchange: Exchange | None = None, answer: str = "") -> None:
        super().__init__(got)
        self.answer = answer  # as it came back
        self.got = got
        self.expected = expected
        self.exchange = exchange


class Skip(Exception):
    """It cannot be told on this server; the message says why."""


class Status(StrEnum):
    PASSED = "passed"
    FAILED = "failed"  # a MUST was not met
    ADVICE = "advice"  # a SHOULD was not met
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """How one check ended. The last five members tell the story of a failure and are empty otherwise."""

    check: Check
    status: Status
    duration_s: float
    reason: str = ""  # of a skip
    notes: tuple[str, ...] = ()
    expected: str = ""
    sent: str = ""
    got: str = ""
    answer: str = ""  # what came back, shortened
    curl: str = ""
