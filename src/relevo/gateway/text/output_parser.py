"""From the text that a model writes to the parts that it means: one parser per choice, chosen by the model.

A parser takes text as it comes, cut anywhere, and the parts that it gives are the same when joined. It sees the ids of
the tokens too, since some families mark parts by tokens without text. A stop string ends content only: it is looked for
in `TextPart`s.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from relevo.core.baton import SampledToken
from relevo.core.ids import TokenId
from relevo.gateway.text.parts import Part, TextPart


@dataclass(frozen=True, slots=True)
class ParserInput:
    """What a parser may need to know of its request: how the prompt ends says what the output begins with."""

    prompt_token_ids: Sequence[TokenId]
    tools: Sequence[Mapping[str, Any]] = ()  # that the model was shown


class OutputParser(Protocol):
    """One choice's."""

    def feed(self, text: str, tokens: Sequence[SampledToken]) -> tuple[Part, ...]:
        """The parts that are certain once this is known."""
        ...

    def flush(self) -> tuple[Part, ...]:
        """What was held back, when the output has ended."""
        ...


class PlainText:
    """All that the model writes is text."""

    def feed(self, text: str, tokens: Sequence[SampledToken]) -> tuple[Part, ...]:
        return (TextPart(text),) if text else ()

    def flush(self) -> tuple[Part, ...]:
        return ()


class ParserFactory(Protocol):
    def __call__(self, asked: ParserInput) -> OutputParser: ...


def plain_text(asked: ParserInput) -> OutputParser:
    return PlainText()
