"""From the text that a model writes to the parts that it means: one parser per choice, chosen by the model.

A parser takes text as it comes, cut anywhere, and the parts that it gives are the same when joined. It sees the ids of
the tokens too, since some families mark parts by tokens without text. A stop string ends content only: it is looked for
in `TextPart`s.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from relevo.core.baton import SampledToken
from relevo.core.ids import TokenId
from relevo.gateway.text.parts import Part, TextPart


@dataclass(frozen=True, slots=True)
class ParserInput:
    """What a parser may need to know of its request: how the prompt ends says what the output begins with."""

    prompt_token_ids: Sequence[TokenId]
    prompt_tail: str = ""  # the last characters of the prompt's text: a template may have opened a block of reasoning
    tools: Sequence[Mapping[str, Any]] = ()  # that the model was shown and may call, in the form of chat templates
    is_parallel: bool = True  # False: one call at most
    num_earlier_calls: int = 0  # in the conversation, for families that count them in their ids
    draw_id: Callable[[], str] = lambda: secrets.token_hex(12)  # what is unique in the id of a call: 24 of [0-9a-f]
    continued_text: str = ""  # of the message that the output goes on with; it may have opened a block, too


class OutputParser(Protocol):
    """One choice's."""

    @property
    def num_reasoning_tokens(self) -> int:
        """Up to now; the marks around them included."""
        ...

    @property
    def is_complete(self) -> bool:
        """The answer may not go on: its one call was written."""
        ...

    @property
    def is_broken_off(self) -> bool:
        """After `flush`: the last call was begun and not finished."""
        ...

    def feed(self, text: str, tokens: Sequence[SampledToken]) -> tuple[Part, ...]:
        """The parts that are certain once this is known."""
        ...

    def flush(self, *, is_cut: bool) -> tuple[Part, ...]:
        """What was held back, when the output has ended. `is_cut`: by a limit, the model would have gone on."""
        ...


class PlainText:
    """All that the model writes is text."""

    num_reasoning_tokens = 0
    is_complete = False
    is_broken_off = False

    def feed(self, text: str, tokens: Sequence[SampledToken]) -> tuple[Part, ...]:
        return (TextPart(text),) if text else ()

    def flush(self, *, is_cut: bool) -> tuple[Part, ...]:
        return ()


class ParserFactory(Protocol):
    def __call__(self, asked: ParserInput) -> OutputParser: ...


def plain_text(asked: ParserInput) -> OutputParser:
    return PlainText()
