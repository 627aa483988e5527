"""How an answer is held that calls tools or has an output format: what of `gateway.held` is asked for, by what is known
of the model. Imported when it is needed, see `generation.grammar`.
"""

from __future__ import annotations

from collections.abc import Mapping

from relevo.core.errors import InvalidRequest
from relevo.core.ids import TokenId
from relevo.gateway.dialects.formats import CallShape
from relevo.gateway.generation.grammar import Holding
from relevo.gateway.generation.prompts import Prompt
from relevo.gateway.generation.spec import ChatPrompt, OutputFormat, PlainPrompt
from relevo.gateway.held.calls import Tool, tool_of
from relevo.gateway.held.fitting import fitted
from relevo.gateway.held.output import Wanted
from relevo.gateway.held.reasoning import Thoughts
from relevo.gateway.text.served_models import ServedModel


def grammar_of(
    served: ServedModel, asked: ChatPrompt | PlainPrompt, output_format: OutputFormat | None, prompt: Prompt
) -> Holding:
    """See `generation.grammar`."""
    if isinstance(asked, PlainPrompt):
        return Holding() if output_format is None else _fitted(served, Wanted(output_format=output_format))
    tools = [tool_of(tool) for tool in asked.callable_tools]
    is_forced = asked.tool_choice.mode == "required"
    if is_forced and not tools:
        raise InvalidRequest("'tool_choice' demands a call, and there is no such tool.", param="tool_choice")
    holds_calls = is_forced or (bool(tools) and (output_format is not None or _holds_auto(served, tools)))
    shape = _shape(served, output_format, is_forced=is_forced) if holds_calls else None
    if shape is None and output_format is None:
        return Holding(notes=_unheld_strict(served, tools))
    return _fitted(
        served,
        Wanted(
            output_format=output_format,
            calls="only" if is_forced else "some" if tools and shape is not None else "none",
            tools=tools,
            shape=shape,
            is_parallel=asked.tool_choice.is_parallel and not (is_forced and _emulates(served)),
            thoughts=_thoughts(served, prompt),
            specials=_specials(served),
        ),
    )


def _fitted(served: ServedModel, wanted: Wanted) -> Holding:
    found = fitted(wanted, served.grammar_refusal)
    return Holding(found.grammar, found.notes)


def _unheld_strict(served: ServedModel, tools: list[Tool]) -> tuple[str, ...]:
    """The client counts on what it is told nothing of."""
    form = "an unknown form" if served.tool_format is None else f"the form of the parser {served.tool_format.name!r}"
    return tuple(
        f"tool {tool.name!r} is strict and its calls are not held: calls in {form} cannot be"
        for tool in tools
        if tool.is_strict
    )


def _holds_auto(served: ServedModel, tools: list[Tool]) -> bool:
    """Whether calls are held that a model may leave: those of strict tools, and those it was told of in words."""
    return _emulates(served) or any(tool.is_strict for tool in tools)


def _emulates(served: ServedModel) -> bool:
    """Such a model never learned to write calls, nor when it has called enough: forced, it would repeat one call."""
    return served.chat_template is not None and served.chat_template.emulates_tools


def _shape(served: ServedModel, output_format: OutputFormat | None, *, is_forced: bool) -> CallShape | None:
    """None: calls are not held. Raises InvalidRequest where one has to be, or where content alone cannot be."""
    if served.tool_format is None:
        if is_forced:
            raise InvalidRequest(
                "'tool_choice' demands a call, and how this model writes calls is not known here; start the server "
                "with --tool-call-parser.",
                param="tool_choice",
            )
        return None
    shape = served.tool_format.shape
    if shape is None and (is_forced or output_format is not None):
        raise InvalidRequest(
            f"Calls in the form of the parser {served.tool_format.name!r} cannot be held; use 'tool_choice': 'auto' "
            "without an output format.",
            param="tool_choice" if is_forced or output_format is None else output_format.param,
        )
    return shape


def _thoughts(served: ServedModel, prompt: Prompt) -> Thoughts | None:
    marks = served.reasoning_format
    return None if marks is None else Thoughts(marks.start, marks.end, marks.is_open_after(prompt.tail), marks.messages)


def _specials(served: ServedModel) -> Mapping[str, TokenId]:
    """Marks that the vocabulary has as special tokens: a grammar lets them through only where it names them."""
    spelled = ((served.tokenizer.token_to_bytes(token_id), token_id) for token_id in sorted(served.markup_token_ids))
    return {text.decode(errors="replace"): token_id for text, token_id in spelled if text}
