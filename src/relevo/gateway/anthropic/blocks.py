"""What single content blocks hold for a model that reads text. Does not know roles, calls or templates.

A block that holds no text is skipped and its type noted, so that one that is new does not end a session; an image or a
file in the middle of a conversation leaves a sentence in its place, so that the model can say what it does not see.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from relevo.core.errors import InvalidRequest

IMAGE_SENTENCE = "[An image was here. This model takes text only and cannot see it.]"
DOCUMENT_SENTENCE = "[A document was here. This model takes text only and cannot read it.]"
_MAX_LEVELS = 4  # of blocks in blocks: a result holds a document that holds texts, and nothing is deeper
_TEXTS_OF_RESULTS = ("title", "url", "source", "text", "stdout", "stderr", "error_code")
_CLEAN_TYPE = re.compile(r"[a-z][a-z0-9_]{0,63}\Z")


@dataclass(slots=True)
class Skipped:
    """What of a request has no effect, to be named in the log."""

    names: set[str] = field(default_factory=set)

    def note(self, place: str, kind: object) -> None:
        is_clean = isinstance(kind, str) and _CLEAN_TYPE.match(kind)
        self.names.add(f"{place}:{kind if is_clean else '?'}")


def checked_blocks(content: Any, place: str) -> Sequence[Mapping[str, Any]]:
    """Blocks of a content that may be a text too. Raises InvalidRequest."""
    if content is None:
        return ()
    if isinstance(content, str):
        return ({"type": "text", "text": content},)
    if not isinstance(content, list):
        raise InvalidRequest(f"'{place}' must be a string or a list of content blocks.", param=place)
    for number, block in enumerate(content):
        if not isinstance(block, dict) or not isinstance(block.get("type"), str):
            raise InvalidRequest(f"'{place}[{number}]' must be an object with a 'type'.", param=f"{place}[{number}]")
    return content


def text_of(
    block: Mapping[str, Any],
    place: str,
    skipped: Skipped,
    *,
    refuses_images: bool = False,
    num_levels: int = _MAX_LEVELS,
) -> str:
    """Empty if it holds none. Raises InvalidRequest, for an image where it is asked to."""
    kind = block["type"]
    if kind == "text":
        text = block.get("text")
        if not isinstance(text, str):
            raise InvalidRequest(f"'{place}.text' must be a string.", param=f"{place}.text")
        return text
    if kind == "image":
        if refuses_images:
            raise InvalidRequest(f"'{place}' is an image, and this model takes text only.", param=place)
        return IMAGE_SENTENCE
    if num_levels and kind == "document":
        return _document(block, place, skipped, num_levels)
    if num_levels and kind.endswith("_result"):
        return _result(block, place, skipped, num_levels)
    skipped.note("content", kind)
    return ""


def joined_text(content: Any, place: str, skipped: Skipped, num_levels: int = _MAX_LEVELS) -> str:
    """All texts of a content, one below the other."""
    blocks = enumerate(checked_blocks(content, place))
    return lines(text_of(block, f"{place}[{i}]", skipped, num_levels=num_levels) for i, block in blocks)


def lines(texts: Any) -> str:
    return "\n".join(text for text in texts if text)


def _document(block: Mapping[str, Any], place: str, skipped: Skipped, num_levels: int) -> str:
    source = block.get("source")
    source = source if isinstance(source, dict) else {}
    match source.get("type"):
        case "text":
            text = source.get("data")
            if not isinstance(text, str):
                raise InvalidRequest(f"'{place}.source.data' must be a string.", param=f"{place}.source.data")
        case "content":
            text = joined_text(source.get("content"), f"{place}.source.content", skipped, num_levels - 1)
        case kind:
            skipped.note("document.source", kind)
            text = DOCUMENT_SENTENCE
    return lines([*_strings(block, ("title", "context")), text])


def _result(block: Mapping[str, Any], place: str, skipped: Skipped, num_levels: int) -> str:
    """Of a search, or of a tool that ran on the server of an earlier turn."""
    content = block.get("content")
    if isinstance(content, dict):
        inner = lines(_strings(content, _TEXTS_OF_RESULTS))
    else:
        inner = joined_text(content, f"{place}.content", skipped, num_levels - 1)
    return lines([*_strings(block, _TEXTS_OF_RESULTS), inner])


def _strings(block: Mapping[str, Any], names: Sequence[str]) -> list[str]:
    return [value for name in names if isinstance(value := block.get(name), str)]
