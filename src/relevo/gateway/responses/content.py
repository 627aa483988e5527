"""The content of an item as a chat message has it: texts, and a sentence or an error where something is no text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from relevo.core.errors import InvalidRequest
from relevo.gateway.responses.json_text import encoded

_TEXTS = frozenset(("input_text", "output_text", "text", "summary_text", "reasoning_text"))
_OTHERS = {
    "input_image": "an image",
    "image_url": "an image",
    "computer_screenshot": "a screenshot",
    "input_file": "a file",
    "input_audio": "a recording",
    "input_video": "a video",
}

Content = str | list[dict[str, Any]]


def message_content(content: Any, place: str) -> Content:
    """Raises InvalidRequest for anything but text."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise InvalidRequest(f"'{place}' must be a string or a list of parts.", param=place)
    texts = [_text(part, f"{place}[{index}]") for index, part in enumerate(content)]
    return texts[0] if len(texts) == 1 else [{"type": "text", "text": text} for text in texts] if texts else ""


def result_content(output: Any, place: str) -> str:
    """What a tool gave back. What is no text is said in a sentence: a refusal would end the whole conversation."""
    if isinstance(output, str):
        return output
    if output is None:
        return ""
    if not isinstance(output, list):
        return encoded(output, place).decode()
    return "\n".join(_text_or_sentence(part, f"{place}[{index}]") for index, part in enumerate(output))


def texts_of(parts: Any) -> list[str]:
    """Those of a list of parts, whatever else is in it."""
    found = [part.get("text") for part in parts if isinstance(part, dict)] if isinstance(parts, list) else []
    return [text for text in found if isinstance(text, str)]


def _text(part: Any, place: str) -> str:
    if isinstance(part, str):
        return part
    kind = part.get("type") if isinstance(part, Mapping) else None
    if not isinstance(kind, str):
        raise InvalidRequest(f"'{place}' must have a 'type', for example 'input_text'.", param=f"{place}.type")
    if kind in _TEXTS:
        text = part.get("text")
    elif kind == "refusal":
        text = part.get("refusal")
    elif kind in _OTHERS:
        raise InvalidRequest(
            f"'{place}' is {_OTHERS[kind]} ({kind!r}), and this model takes text only; leave it out or describe it.",
            param=place,
        )
    else:
        raise InvalidRequest(f"'{place}' is of type {kind!r}, and this model takes text only.", param=f"{place}.type")
    if not isinstance(text, str):
        raise InvalidRequest(f"'{place}' has no text.", param=place)
    return text


def _text_or_sentence(part: Any, place: str) -> str:
    kind = part.get("type") if isinstance(part, Mapping) else None
    kind = kind if isinstance(kind, str) else ""
    if kind in _TEXTS or kind == "refusal" or isinstance(part, str):
        return _text(part, place)
    what = _OTHERS.get(kind, "something else than text")
    return f"[The tool gave back {what} here, which cannot be shown: this model takes text only.]"
