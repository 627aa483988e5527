"""The grammar that an answer is held to while it is generated: of a forced call, of an output format, or none.

Decides what of a request may be held; how, is `generation.held_grammar`'s and `gateway.held`'s, which come with the
first request that needs them. Made before the request runs, so that what cannot be held is refused with a status. Runs
in worker threads.
"""

from __future__ import annotations

from dataclasses import dataclass

from relevo.gateway.generation.prompts import Prompt
from relevo.gateway.generation.spec import ChatPrompt, OutputFormat, PlainPrompt
from relevo.gateway.text.served_models import ServedModel
from relevo.gateway.text.text_work import INLINE_BYTES

_MARKS_OF_GRAMMARS = (b'"response_format"', b'"structured_outputs"', b'"guided_', b'"regex"', b'"ebnf"')
_MORE_MARKS = (
    b'"grammar"',
    b'"json_schema"',
    b'"tools"',  # where they are told in words
    b'"tool_choice"',
    b'"strict"',
    b'"output_config"',
    b'"output_format"',
    b'"format"',
    b"\\u",  # a name may be spelled in escapes
)


@dataclass(frozen=True, slots=True)
class Holding:
    """Of one answer."""

    grammar: str | None = None  # None: any text
    notes: tuple[str, ...] = ()  # what of the wishes is not held


def text_cost(body: bytes) -> int:
    """In bytes of text: a body that may want a grammar counts as a long one, whose work is done on a thread."""
    if len(body) > INLINE_BYTES:
        return len(body)
    asks = any(mark in body for mark in (*_MARKS_OF_GRAMMARS, *_MORE_MARKS))
    return max(len(body), INLINE_BYTES + 1) if asks else len(body)


def grammar_of(
    served: ServedModel, asked: ChatPrompt | PlainPrompt, output_format: OutputFormat | None, prompt: Prompt
) -> Holding:
    """The workers compile every grammar that comes from here. Raises InvalidRequest."""
    if output_format is None and not _may_call(asked):
        return Holding()
    from relevo.gateway.generation import held_grammar

    return held_grammar.grammar_of(served, asked, output_format, prompt)


def _may_call(asked: ChatPrompt | PlainPrompt) -> bool:
    return isinstance(asked, ChatPrompt) and bool(asked.callable_tools or asked.tool_choice.mode == "required")
