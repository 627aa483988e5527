"""What a family of models contributes: how it writes calls and reasoning, as data and as a parser.

A `ToolFormat` knows nothing of reasoning and of tokens, a `ReasoningFormat` nothing of calls; `dialects.composed` puts
them together to one `OutputParser` per choice. A family whose calls and reasoning are one thing (harmony) has a
`ToolFormat` and a `ReasoningFormat` of the same name, and a parser of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from relevo.gateway.text.output_parser import ParserInput
from relevo.gateway.text.parts import Part


class ToolCallParser(Protocol):
    """Content of one choice to texts and calls. However the text is cut, the parts are the same when joined.

    A call's first part has its id and name, and comes no sooner than both are certain; its index counts the calls of
    the choice from 0. Text that never became a call comes out as text. Never raises, whatever a model writes.
    """

    @property
    def num_closed_calls(self) -> int:
        """Up to now: calls whose arguments are known whole."""
        ...

    @property
    def is_in_call(self) -> bool:
        """A call was begun (its first part came out) and is not closed."""
        ...

    def feed(self, text: str) -> Sequence[Part]: ...

    def flush(self, *, is_cut: bool) -> Sequence[Part]:
        """What was held back at the end. `is_cut`: by a limit; else the model ended here."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class CallShape:
    """How the calls of an answer are written, for a grammar that holds a model to them:
    `begin`, calls joined by `between`, `end`; a call is `before_name` NAME `before_arguments` ARGUMENTS
    `after_arguments`. `{name}` and `{index}` stand for the call's own in every one of them."""

    before_name: str
    before_arguments: str
    after_arguments: str
    begin: str = ""
    between: str = "\n"
    end: str = ""
    arguments: Literal["json", "parameters", "python", "gemma"] = "json"
    before_parameter: str = ""  # of "parameters": `{name}` is the parameter's
    before_other: str = ""  # the same, before a value that is no text; empty: nothing tells the two apart
    after_parameter: str = ""
    quote: str = ""  # of "gemma": around texts
    trigger: str = ""  # the first characters that can only be a call; empty: of `begin`, or of `before_name`


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageMarks:
    """Of a family that answers in messages: what stands around them. The prompt has begun the first message."""

    next: str  # begins each further one
    content: str  # behind it: the answer's content follows
    preamble: str  # a text follows, and then calls
    end: str  # of a message behind which another comes


class ToolFormat(Protocol):
    @property
    def name(self) -> str:
        """As --tool-call-parser takes it; vLLM's name where it has the family."""
        ...

    @property
    def markup(self) -> Sequence[str]:
        """Texts that frame calls. Where a vocabulary has them as special tokens, the parser still reads them."""
        ...

    @property
    def shape(self) -> CallShape | None:
        """None: this family's calls cannot be held to a grammar yet."""
        ...

    def recognises(self, template: str) -> bool:
        """Whether a chat template (its Jinja source) shows calls in this format."""
        ...

    def parser(self, asked: ParserInput) -> ToolCallParser: ...


class ReasoningFormat(Protocol):
    @property
    def name(self) -> str:
        """As --reasoning-parser takes it; vLLM's name where it has the family."""
        ...

    @property
    def start(self) -> str: ...

    @property
    def end(self) -> str: ...

    @property
    def messages(self) -> MessageMarks | None:
        """None: thoughts and content are one text."""
        ...

    def recognises(self, template: str) -> bool: ...

    def is_open_after(self, prompt_tail: str) -> bool:
        """Whether a prompt that ends so has opened a block of reasoning, in which the answer begins."""
        ...
