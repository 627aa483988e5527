"""One request and what came back: the record that a failing check shows, and typed looks into JSON answers.

Does not send anything. A look at a member that is not there, or of another type, is a `Mismatch`.
"""

from __future__ import annotations

import json
import re
import shlex
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Self, TypeVar

from relevo.check.words import Mismatch, Skip
from relevo.client.http import Request
from relevo.client.sse import SSEBody, read_body

T = TypeVar("T")
MAX_ARGUMENT_CHARS = 4_000  # longer bodies come from a program; arbitrary
SHOWN_CHARS = 2_000  # of a body in a report; arbitrary
_REPETITION = re.compile(rb"(.{1,15}?)\1{63,}", re.DOTALL)
KEY_PLACEHOLDER = "$OPENAI_API_KEY"  # keys are never written into reports
OTHER_KEY_PLACEHOLDER = "$OTHER_API_KEY"


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    request: Request
    has_own_key: bool = False  # the check's, which may be shown; else the operator's, which may not
    key_placeholder: str = KEY_PLACEHOLDER  # stands for the operator's

    @property
    def sent(self) -> str:
        """One line and the body, shortened."""
        path = "/" + self.request.url.partition("://")[2].partition("/")[2]
        return f"{self.request.method} {path} {shortened(self.request.body.decode(errors='backslashreplace'))}".rstrip()

    @property
    def curl(self) -> str:
        """A command that repeats the request; bodies that a shell cannot take come from a pipe."""
        method, url, body = self.request.method, self.request.url, self.request.body
        words = ["curl", "-sS", "-i", "-N", "-X", method, shlex.quote(url)]
        for name, value in self.request.headers.items():
            if name.lower() == "authorization" and not self.has_own_key:
                words += ["-H", f'"Authorization: Bearer {self.key_placeholder}"']
            else:
                words += ["-H", shlex.quote(f"{name}: {value}")]
        if not body:
            return " ".join(words)
        try:
            text = body.decode()
        except UnicodeDecodeError:
            text = ""
        if not text or "\0" in text or len(text) > MAX_ARGUMENT_CHARS:
            return f"python3 -c {shlex.quote(_writer(body))} | " + " ".join([*words, "--data-binary", "@-"])
        return " ".join([*words, "--data-binary", shlex.quote(text)])


def _writer(body: bytes) -> str:
    """A program that writes `body`; long repetitions are written as products."""
    parts, start = [], 0
    for run in _REPETITION.finditer(body):
        unit = run.group(1)
        parts += [repr(body[start : run.start()]), f"{unit!r} * {len(run.group()) // len(unit)}"]
        start = run.end()
    parts.append(repr(body[start:]))
    return f"import sys; sys.stdout.buffer.write({' + '.join(part for part in parts if part != repr(b''))})"


def shortened(text: str, limit: int = SHOWN_CHARS) -> str:
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]} ... ({len(text) - 2 * half} characters left out) ... {text[-half:]}"


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    token: str
    logprob: float
    top: tuple[tuple[str, float], ...]
    data: bytes | None = None


def parse_json(text: str | bytes) -> Any:
    """As RFC 8259 has it: NaN and Infinity are none. Raises ValueError, also for what is nested too deep to be read."""
    try:
        return json.loads(text, parse_constant=_no_constant)
    except RecursionError:
        raise ValueError("nested too deep") from None


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


@dataclass(kw_only=True)
class Answer:
    """A whole response. `raw` is the body."""

    exchange: Exchange
    status: int
    headers: Mapping[str, str]
    raw: bytes
    duration_s: float
    shown: str = field(init=False)

    def __post_init__(self) -> None:
        self.shown = f"HTTP {self.status}\n{shortened(self.raw.decode(errors='backslashreplace'))}"

    def fail(self, got: str, expected: str = "") -> Mismatch:
        """To be raised."""
        return Mismatch(got, expected=expected, exchange=self.exchange, answer=self.shown)

    @cached_property
    def json(self) -> Any:
        try:
            return parse_json(self.raw)
        except ValueError:
            raise self.fail("the body is not JSON", "a JSON body") from None

    @property
    def is_refusal(self) -> bool:
        return 400 <= self.status < 500 or self.status == 501

    def ok(self) -> Self:
        """Itself if the status is 200. A refusal for want of room cannot be judged."""
        if self.status in (429, 503) and "retry-after" in self.headers:
            raise Skip(f"the server refused for want of room (HTTP {self.status}); run against an idle server")
        if self.status != 200:
            raise self.fail(f"HTTP {self.status}: {self.error_message}", "HTTP 200")
        return self

    @property
    def error_message(self) -> str:
        """What the body says, whatever its shape; half surrogate pairs, which cannot be printed, as escapes."""
        try:
            body = parse_json(self.raw)
        except ValueError:
            return shortened(self.raw.decode(errors="replace"), 200)
        error = body.get("error", body) if isinstance(body, dict) else body
        message = error.get("message", error) if isinstance(error, dict) else error
        return shortened(str(message).encode(errors="backslashreplace").decode(), 300)

    def at(self, kind: type[T], *path: str | int) -> T:
        """The member at `path`. `int` does not take booleans; `float` takes integers too."""
        value = self.json
        for step in path:
            try:
                value = value[step]
            except (KeyError, IndexError, TypeError):
                raise self.fail(f"the answer has no {dotted(path)}", f"{dotted(path)} is there") from None
        return self.typed(value, kind, dotted(path))

    def typed(self, value: Any, kind: type[T], name: str) -> T:
        fits = isinstance(value, (int, float) if kind is float else kind)
        if not fits or (isinstance(value, bool) and kind is not bool):
            raise self.fail(f"{name} is {shortened(repr(value), 100)}", f"{name} of type {kind.__name__}")
        return value  # type: ignore[no-any-return]

    # ---- what generating endpoints answer ----------------------------------------------------------------------------

    @property
    def is_chat(self) -> bool:
        return self.exchange.request.url.endswith("/chat/completions")

    @property
    def num_choices(self) -> int:
        return len(self.at(list, "choices"))

    def text(self, index: int = 0) -> str:
        if not self.is_chat:
            return self.at(str, "choices", index, "text")
        if self.at(dict, "choices", index, "message").get("content") is None:
            return ""
        return self.at(str, "choices", index, "message", "content")

    def finish_reason(self, index: int = 0) -> str:
        return self.at(str, "choices", index, "finish_reason")

    def usage(self, name: str) -> int:
        return self.at(int, "usage", name)

    @property
    def num_cached_tokens(self) -> int:
        return self.at(int, "usage", "prompt_tokens_details", "cached_tokens")

    def logprobs(self, index: int = 0) -> list[TokenLogprob]:
        told = self.at(dict, "choices", index, "logprobs")
        return read_logprobs(self, told)


def read_logprobs(answer: Answer, told: Mapping[str, Any]) -> list[TokenLogprob]:
    """Either format as one list, whichever endpoint it comes from. Raises Mismatch where it is neither."""
    if "content" in told:
        entries = answer.typed(told.get("content"), list, "logprobs.content")
        return [_chat_entry(answer, entry) for entry in entries]
    tokens = answer.typed(told.get("tokens"), list, "logprobs.tokens")
    values = answer.typed(told.get("token_logprobs"), list, "logprobs.token_logprobs")
    tops = answer.typed(told.get("top_logprobs") or [None] * len(tokens), list, "logprobs.top_logprobs")
    if not len(tokens) == len(values) == len(tops):
        raise answer.fail(
            f"{len(tokens)} tokens, {len(values)} token_logprobs, {len(tops)} top_logprobs", "equal lengths"
        )
    return [
        TokenLogprob(
            answer.typed(token, str, "logprobs.tokens[]"),
            0.0 if value is None else answer.typed(value, float, "logprobs.token_logprobs[]"),
            tuple((name, answer.typed(p, float, "logprobs.top_logprobs[]")) for name, p in top.items())
            if isinstance(top, dict)
            else (),
        )
        for token, value, top in zip(tokens, values, tops, strict=True)
    ]


def _chat_entry(answer: Answer, entry: Any) -> TokenLogprob:
    name = "logprobs.content[]"
    fields = answer.typed(entry, dict, name)
    token = answer.typed(fields.get("token"), str, f"{name}.token")
    value = answer.typed(fields.get("logprob"), float, f"{name}.logprob")
    top = answer.typed(fields.get("top_logprobs", []), list, f"{name}.top_logprobs")
    pairs = []
    for one in top:
        alternative = answer.typed(one, dict, f"{name}.top_logprobs[]")
        pairs.append((
            answer.typed(alternative.get("token"), str, f"{name}.top_logprobs[].token"),
            answer.typed(alternative.get("logprob"), float, f"{name}.top_logprobs[].logprob"),
        ))  # fmt: skip
    listed = fields.get("bytes")
    return TokenLogprob(token, value, tuple(pairs), _bytes(answer, listed) if listed is not None else None)


def _bytes(answer: Answer, listed: Any) -> bytes:
    name = "logprobs.content[].bytes"
    numbers = [answer.typed(number, int, f"{name}[]") for number in answer.typed(listed, list, name)]
    if not all(0 <= number < 256 for number in numbers):
        raise answer.fail(f"{name} is {shortened(str(numbers), 100)}", "numbers from 0 to 255")
    return bytes(numbers)


@dataclass(kw_only=True)
class StreamAnswer(Answer):
    """A streamed response. `pieces` are the sizes in which the body arrived, each with its time."""

    piece_ends: tuple[int, ...]  # offset of the end of each piece
    piece_at_s: tuple[float, ...]  # after the request was sent
    was_cut: bool = False  # the connection broke before the body's end

    @cached_property
    def sse(self) -> SSEBody:
        return read_body(self.raw)

    @cached_property
    def chunks(self) -> list[dict[str, Any]]:
        """The JSON of every event but `[DONE]`."""
        found: list[dict[str, Any]] = []
        for event in self.sse.events:
            if event.text.strip() == "[DONE]":
                continue
            try:
                chunk = parse_json(event.text)
            except ValueError:
                raise self.fail(f"an event is not JSON: {shortened(event.text, 100)!r}", "JSON events") from None
            found.append(self.typed(chunk, dict, "an event"))
        return found

    @property
    def num_done(self) -> int:
        return sum(event.text.strip() == "[DONE]" for event in self.sse.events)

    @cached_property
    def error_events(self) -> list[Any]:
        return [chunk["error"] for chunk in self.chunks if "error" in chunk]

    def choice_parts(self, index: int = 0) -> list[dict[str, Any]]:
        """The parts of one choice, in order."""
        choices = [
            self.typed(choice, dict, "choices[]")
            for chunk in self.chunks
            for choice in self.typed(chunk.get("choices") or [], list, "choices")
        ]
        return [choice for choice in choices if choice.get("index", 0) == index]

    def deltas(self, index: int = 0) -> list[dict[str, Any]]:
        """The delta of each part of one choice of a chat, {} where there is none."""
        return [self.typed(part.get("delta") or {}, dict, "delta") for part in self.choice_parts(index)]

    def pieces_of_text(self, index: int = 0) -> list[str]:
        if self.is_chat:
            told = [delta.get("content") for delta in self.deltas(index)]
        else:
            told = [part.get("text") for part in self.choice_parts(index)]
        return [text for text in told if isinstance(text, str)]

    def text(self, index: int = 0) -> str:
        return "".join(self.pieces_of_text(index))

    def finish_reasons(self, index: int = 0) -> list[str]:
        return [part["finish_reason"] for part in self.choice_parts(index) if part.get("finish_reason") is not None]

    def finish_reason(self, index: int = 0) -> str:
        reasons = self.finish_reasons(index)
        if len(reasons) != 1:
            raise self.fail(f"choice {index} has {len(reasons)} finish reasons", "one finish_reason per choice")
        return self.typed(reasons[0], str, "finish_reason")

    def usage(self, name: str) -> int:
        told = [chunk["usage"] for chunk in self.chunks if chunk.get("usage")]
        if not told:
            raise self.fail("no chunk has usage", "usage in the last chunk")
        return self.typed(self.typed(told[-1], dict, "usage").get(name), int, f"usage.{name}")

    def logprobs(self, index: int = 0) -> list[TokenLogprob]:
        told = [part["logprobs"] for part in self.choice_parts(index) if part.get("logprobs")]
        return [entry for one in told for entry in read_logprobs(self, self.typed(one, dict, "logprobs"))]

    def event_at_s(self, number: int) -> float:
        """When event `number` had arrived."""
        piece = bisect_left(self.piece_ends, self.sse.events[number].end)
        return self.piece_at_s[min(piece, len(self.piece_at_s) - 1)]


def dotted(path: tuple[str | int, ...]) -> str:
    text = ""
    for step in path:
        text += f"[{step}]" if isinstance(step, int) else f".{step}"
    return text.removeprefix(".") or "the body"
