"""The sandbox in which a model's chat template runs, and what it may call there.

Source: the chat template conventions of Hugging Face transformers (`apply_chat_template`).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime
from typing import Any

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
from jinja2.sandbox import ImmutableSandboxedEnvironment


class TemplateRefusal(jinja2.TemplateError):
    """Raised by the template itself; the message is written for the client."""


class _GenerationBlock(jinja2.ext.Extension):
    """`{% generation %} ... {% endgeneration %}` marks what a model writes, for training; it renders its body."""

    tags = {"generation"}  # noqa: RUF012 (the type of the overridden attribute)

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return [jinja2.nodes.Scope(body).set_lineno(line)]


def template_environment(local_time: Callable[[], datetime]) -> jinja2.Environment:
    def raise_exception(message: str) -> None:
        raise TemplateRefusal(message)

    def strftime_now(time_format: str) -> str:
        return local_time().strftime(time_format)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlock, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = strftime_now
    return environment


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as models saw it in training; Jinja's own filter escapes for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
