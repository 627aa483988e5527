"""An answer's grammar that the model's vocabulary takes: what is too large for it is held less, or refused by name.

Tools that are not strict give way, the largest first: then their arguments are any JSON object, and a note says so.
What the client demands exactly, a form or a strict tool, is refused with its field. Does not know why a grammar is too
large; the vocabulary says that, by the same rules as the workers do.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from relevo.core.errors import InvalidRequest
from relevo.gateway.held.calls import Tool
from relevo.gateway.held.output import Held, TooLarge, Wanted, held

Refusal = Callable[[str], str]  # why a grammar cannot be compiled; empty: it can

_ANY_ARGUMENTS = {"type": "object"}


def fitted(wanted: Wanted, refusal_of: Refusal) -> Held:
    """At most four grammars are made and compiled. Raises InvalidRequest."""
    refusal = ""
    for loosened, notes in _attempts(wanted):
        try:
            found = held(loosened)
            refusal = refusal_of(found.grammar)
        except TooLarge as error:
            refusal = error.message
        if not refusal:
            return Held(found.grammar, (*notes, *found.notes))
    raise _refused(wanted, refusal)


def _attempts(wanted: Wanted) -> Iterator[tuple[Wanted, Sequence[str]]]:
    """As it is; then with the largest tool that may be held less, with half of them, with none held as it says."""
    yield wanted, ()
    if wanted.calls == "none":
        return
    loose = sorted(
        (index for index, tool in enumerate(wanted.tools) if not tool.is_strict and tool.parameters != _ANY_ARGUMENTS),
        key=lambda index: -_size(wanted.tools[index]),
    )
    for count in sorted({1, (len(loose) + 1) // 2, len(loose)} - {0}) if loose else ():
        given_way = set(loose[:count])
        tools = [
            replace(tool, parameters=_ANY_ARGUMENTS) if index in given_way else tool
            for index, tool in enumerate(wanted.tools)
        ]
        yield (
            replace(wanted, tools=tools),
            [f"tool {wanted.tools[index].name!r} is held as any object: it is too large" for index in loose[:count]],
        )


def _size(tool: Tool) -> int:
    try:
        return len(json.dumps(tool.parameters))
    except RecursionError:
        return 1 << 40


def _refused(wanted: Wanted, refusal: str) -> InvalidRequest:
    strict = [tool for tool in wanted.tools if tool.is_strict] if wanted.calls != "none" else []
    if wanted.output_format is not None and wanted.calls != "only":
        param = wanted.output_format.param
        beside = " and the tools" if wanted.calls == "some" else ""
        return InvalidRequest(
            f"What '{param}'{beside} ask{'' if beside else 's'} for cannot be held: {refusal} Use a smaller schema"
            f"{', or fewer tools' if beside else ''}.",
            param=param,
        )
    if strict:
        largest = max(strict, key=_size)
        return InvalidRequest(
            f"'tools' is strict, and cannot be held: {refusal} The largest strict tool is {largest.name!r}; make it "
            "smaller, or send 'strict': false.",
            param="tools",
        )
    return InvalidRequest(f"Calls of 'tools' cannot be held: {refusal} Declare fewer tools.", param="tools")
