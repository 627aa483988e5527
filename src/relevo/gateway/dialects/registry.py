"""All formats by name, and which of them a chat template shows. A new format is one line in one of the tables."""

from __future__ import annotations

from relevo.gateway.dialects.code_formats import CODE_FORMATS
from relevo.gateway.dialects.formats import ReasoningFormat, ToolFormat
from relevo.gateway.dialects.harmony_formats import HARMONY_REASONING, HARMONY_TOOLS
from relevo.gateway.dialects.json_families import HERMES, JSON_FORMATS
from relevo.gateway.dialects.reasoning import REASONING_FORMATS as BLOCKS
from relevo.gateway.dialects.tagged_formats import TAGGED_FORMATS

EMULATED = HERMES  # in which a model is asked to call whose template knows no tools

_TOOL_FORMATS: tuple[ToolFormat, ...] = (HARMONY_TOOLS, *TAGGED_FORMATS, *CODE_FORMATS, *JSON_FORMATS)
_REASONING_FORMATS: tuple[ReasoningFormat, ...] = (HARMONY_REASONING, *BLOCKS)

TOOL_FORMATS: dict[str, ToolFormat] = {each.name: each for each in _TOOL_FORMATS}
REASONING_FORMATS: dict[str, ReasoningFormat] = {each.name: each for each in _REASONING_FORMATS}


def tool_format_for(template_source: str) -> ToolFormat | None:
    """The most specific of those that recognise it: more of its marks are there; of equal ones the first."""
    found = [each for each in TOOL_FORMATS.values() if each.recognises(template_source)]
    return max(found, key=lambda each: _num_chars_shown(each, template_source), default=None)


def reasoning_format_for(template_source: str) -> ReasoningFormat | None:
    """The first that recognises it: the table begins with the most specific ones."""
    return next((each for each in REASONING_FORMATS.values() if each.recognises(template_source)), None)


def _num_chars_shown(tool_format: ToolFormat, template_source: str) -> int:
    return sum(len(mark) for mark in tool_format.markup if mark in template_source)
