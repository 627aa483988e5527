"""Which formats a model's calls and reasoning have: as the operator says, or as its chat template shows."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

from relevo.build.configs import ServedModelConfig
from relevo.core.errors import SettingsError
from relevo.core.ids import TokenId
from relevo.core.model import TokenizerFiles
from relevo.gateway.dialects.composed import ComposedParsers
from relevo.gateway.dialects.formats import ReasoningFormat, ToolFormat
from relevo.gateway.dialects.registry import (
    EMULATED,
    REASONING_FORMATS,
    TOOL_FORMATS,
    reasoning_format_for,
    tool_format_for,
)
from relevo.gateway.text.chat_template import ModelTemplates
from relevo.gateway.text.output_parser import ParserFactory, plain_text
from relevo.gateway.text.tokenizer import Tokenizer

log = logging.getLogger("relevo.gateway")

AUTO, NONE = "auto", "none"
Format = TypeVar("Format")


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    tool_format: ToolFormat | None
    reasoning_format: ReasoningFormat | None
    markup_token_ids: frozenset[TokenId]

    @property
    def make_parser(self) -> ParserFactory:
        if self.tool_format is None and self.reasoning_format is None:
            return plain_text
        return ComposedParsers(self.reasoning_format, self.tool_format)


def dialect_of(
    config: ServedModelConfig, files: TokenizerFiles, templates: ModelTemplates | None, tokenizer: Tokenizer
) -> Dialect:
    """Raises SettingsError for a name that there is not. Says in the log what was chosen."""
    source = files.chat_template or ""
    tool_source = files.named_templates.get("tool_use", source)
    shows_tools = templates is not None and templates.knows_tools
    tool_format = _named(config.tool_call_parser, TOOL_FORMATS, "--tool-call-parser")
    if config.tool_call_parser == AUTO and templates is not None:
        tool_format = tool_format_for(tool_source) if shows_tools else EMULATED if templates.emulates_tools else None
    reasoning_format = _named(config.reasoning_parser, REASONING_FORMATS, "--reasoning-parser")
    if config.reasoning_parser == AUTO:
        reasoning_format = reasoning_format_for(source) or reasoning_format_for(tool_source)
    log.info(
        "%s: tool calls %s, reasoning %s",
        config.served_model_names[0],
        _note(tool_format, config.tool_call_parser, "from the chat template" if shows_tools else "as they are told"),
        _note(reasoning_format, config.reasoning_parser, "from the chat template"),
    )
    if shows_tools and tool_format is None and config.tool_call_parser == AUTO:
        log.warning(
            "%s: its chat template has a place for tools and shows no known form of calls, so calls will be text; "
            "name the form with --tool-call-parser",
            config.served_model_names[0],
        )
    return Dialect(
        tool_format=tool_format,
        reasoning_format=reasoning_format,
        markup_token_ids=_markup_token_ids(tokenizer, tool_format, reasoning_format),
    )


def _named(name: str, formats: Mapping[str, Format], flag: str) -> Format | None:
    if name in (AUTO, NONE):
        return None
    if name not in formats:
        raise SettingsError(f"{flag} {name} is not known; use {AUTO}, {NONE}, {', '.join(sorted(formats))}")
    return formats[name]


def _note(chosen: ToolFormat | ReasoningFormat | None, asked: str, origin: str) -> str:
    return NONE if chosen is None else f"{chosen.name} ({origin})" if asked == AUTO else chosen.name


def _markup_token_ids(
    tokenizer: Tokenizer, tool_format: ToolFormat | None, reasoning_format: ReasoningFormat | None
) -> frozenset[TokenId]:
    """Special tokens that spell marks, or are a part of one: without their text no mark would be seen."""
    marks = [*tool_format.markup] if tool_format is not None else []
    marks += [reasoning_format.start, reasoning_format.end] if reasoning_format is not None else []
    texts = {
        token_id: tokenizer.token_to_bytes(token_id).decode(errors="replace")
        for token_id in tokenizer.special_token_ids
    }
    return frozenset(token_id for token_id, text in texts.items() if text and any(text in mark for mark in marks))
