"""Anthropic's streams and bodies. Source: Anthropic API reference, "Messages" and "Streaming Messages".

Owns the order of events: `message_start`, each block whole before the next one starts, `message_delta`, `message_stop`;
how parts become blocks; and the shortcut for the common event, text that goes on: all of it but the text is encoded
once per block.

A call whose arguments are no JSON object, because the answer was cut within them, is shown as it is: in a stream the
text that came; in a whole answer `input` is empty, so that half a command is taken for none, and the text is in
`partial_json` beside it. `stop_reason` says that it was cut, and a history with such a block is read with that text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from relevo.core.errors import RelevoError
from relevo.gateway.anthropic.errors import ANTHROPIC_ERRORS
from relevo.gateway.anthropic.events import PING, encode_event
from relevo.gateway.generation.finished_choice import FinishedChoice
from relevo.gateway.generation.reply_writer import Usage
from relevo.gateway.text.parts import Delta, Part, ReasoningPart, RefusalPart, TextPart, ToolCallPart

SIGNATURE = "cmVsZXZvLXRob3VnaHQ="  # clients send it back and want one that is not empty; nothing checks it
_STOP_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}
_END_OF_TEXT = b"}}\n\n"


def usage_json(usage: Usage, service_tier: str) -> dict[str, Any]:
    """The three numbers of the input add up to the prompt. Nothing is charged for keeping one, so 0 are written."""
    return {
        "input_tokens": usage.num_prompt_tokens - usage.num_cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.num_cached_tokens,
        "cache_creation": {"ephemeral_5m_input_tokens": 0, "ephemeral_1h_input_tokens": 0},
        "output_tokens": usage.num_output_tokens,
        "output_tokens_details": {"thinking_tokens": usage.num_reasoning_tokens},
        "server_tool_use": None,
        "service_tier": service_tier,
        "inference_geo": None,
    }


@dataclass(slots=True)
class MessageWriter:
    """The `ReplyWriter`, of one choice. `usage`: what the request has used up to now."""

    response_id: str
    request_id: str
    model: str
    usage: Callable[[], Usage]
    service_tier: str = "standard"  # that served it
    keepalive: bytes = PING
    _num_blocks: int = 0  # begun
    _open: Part | None = None  # what the block that is open began with
    _text_frame: bytes = b""  # of that block, before the text
    _has_refused: bool = False

    def begin(self) -> Iterator[bytes]:
        return iter((encode_event({"type": "message_start", "message": self._message([], None, None)}),))

    def delta(self, delta: Delta) -> bytes:
        parts = delta.parts
        if len(parts) == 1 and type(parts[0]) is TextPart and type(self._open) is TextPart:
            return self._text_frame + orjson.dumps(parts[0].text) + _END_OF_TEXT
        return b"".join(map(self._part, parts))

    def finish_choice(self, delta: Delta) -> bytes:
        reason, sequence = _stop(delta.finish_reason, delta.stop_reason, has_refused=self._has_refused)
        ended = {"container": None, "stop_details": None, "stop_reason": reason, "stop_sequence": sequence}
        usage = usage_json(self.usage(), self.service_tier)
        return self._close() + encode_event({"type": "message_delta", "delta": ended, "usage": usage})

    def end(self) -> bytes:
        return encode_event({"type": "message_stop"})

    def error(self, error: RelevoError) -> bytes:
        return ANTHROPIC_ERRORS.stream_event(error, self.request_id)

    def logprobs(self, delta: Delta) -> Mapping[str, Any] | None:
        return None

    def whole(self, choices: Sequence[FinishedChoice]) -> bytes:
        parts = choices[0].parts
        reason, sequence = _stop(
            choices[0].finish_reason,
            choices[0].stop_reason,
            has_refused=any(isinstance(part, RefusalPart) for part in parts),
        )
        return orjson.dumps(self._message([_whole_block(part) for part in parts], reason, sequence))

    def _message(self, content: list[Any], stop_reason: str | None, stop_sequence: str | None) -> dict[str, Any]:
        return {
            "id": self.response_id,
            "type": "message",
            "role": "assistant",
            "model": self.model,
            "content": content,
            "stop_reason": stop_reason,
            "stop_sequence": stop_sequence,
            "stop_details": None,
            "container": None,
            "usage": usage_json(self.usage(), self.service_tier),
        }

    # ---- blocks of a stream ------------------------------------------------------------------------------------------

    def _part(self, part: Part) -> bytes:
        opening = b"" if self._goes_on(part) else self._close() + self._start(part)
        match part:
            case ToolCallPart(arguments=arguments):
                shown = {"type": "input_json_delta", "partial_json": arguments}
                return opening + (self._block_delta(shown) if arguments else b"")
            case ReasoningPart(text=text):
                return opening + self._block_delta({"type": "thinking_delta", "thinking": text})
            case TextPart(text=text) | RefusalPart(text=text):
                return opening + self._block_delta({"type": "text_delta", "text": text})

    def _goes_on(self, part: Part) -> bool:
        opened = self._open
        return type(part) is type(opened) and getattr(part, "index", 0) == getattr(opened, "index", 0)

    def _start(self, part: Part) -> bytes:
        index, self._open, self._num_blocks = self._num_blocks, part, self._num_blocks + 1
        self._has_refused = self._has_refused or isinstance(part, RefusalPart)
        self._text_frame = (
            b'event: content_block_delta\ndata: {"type":"content_block_delta","index":%d,'
            b'"delta":{"type":"text_delta","text":' % index
        )
        block = _begun_block(part)
        return encode_event({"type": "content_block_start", "index": index, "content_block": block})

    def _close(self) -> bytes:
        """The end of the block that is open, if one is."""
        opened, self._open = self._open, None
        if opened is None:
            return b""
        signed = b""
        if isinstance(opened, ReasoningPart):
            signed = self._block_delta({"type": "signature_delta", "signature": SIGNATURE})
        return signed + encode_event({"type": "content_block_stop", "index": self._num_blocks - 1})

    def _block_delta(self, shown: Mapping[str, Any]) -> bytes:
        return encode_event({"type": "content_block_delta", "index": self._num_blocks - 1, "delta": shown})


def _begun_block(part: Part) -> dict[str, Any]:
    match part:
        case ToolCallPart():
            return {"type": "tool_use", "id": part.id, "name": part.name, "input": {}, "caller": {"type": "direct"}}
        case ReasoningPart():
            return {"type": "thinking", "thinking": "", "signature": ""}
        case _:
            return {"type": "text", "text": "", "citations": []}


def _whole_block(part: Part) -> dict[str, Any]:
    block = _begun_block(part)
    match part:
        case ToolCallPart(arguments=arguments):
            return block | _input(arguments)
        case ReasoningPart(text=text):
            return block | {"thinking": text, "signature": SIGNATURE}
        case TextPart(text=text) | RefusalPart(text=text):
            return block | {"text": text}


def _input(arguments: str) -> dict[str, Any]:
    """Numbers stay as the model wrote them."""
    try:
        is_object = isinstance(orjson.loads(arguments or "{}"), dict)
    except orjson.JSONDecodeError:
        is_object = False
    if is_object:
        return {"input": orjson.Fragment(arguments or "{}")}
    return {"input": {}, "partial_json": arguments}


def _stop(finish_reason: str | None, stop_reason: int | str | None, *, has_refused: bool) -> tuple[str, str | None]:
    """`stop_reason` and `stop_sequence`."""
    if finish_reason == "stop" and isinstance(stop_reason, str):
        return "stop_sequence", stop_reason
    if finish_reason == "stop" and has_refused:
        return "refusal", None
    return _STOP_REASONS[finish_reason or "stop"], None
