"""What a chat or completion request wants its text to be, from any of the fields in which clients say so.

OpenAI's `response_format`; vLLM's `structured_outputs` and the older `guided_...` fields; SGLang's `regex` and `ebnf`;
llama.cpp's `grammar` and `json_schema`. A request may say one thing only. Does not know how answers are held to it.
Sources: OpenAI API reference; the documentation of vLLM's, SGLang's and llama.cpp's servers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec

from relevo.core.errors import InvalidRequest
from relevo.core.told_values import as_sent
from relevo.gateway.generation.spec import OutputFormat
from relevo.gateway.openai.schemas import GenerationFields

_RESPONSE_FORMATS = ("text", "json_object", "json_schema")
_BLANKS = ("whitespace_pattern", "disable_any_whitespace")
_WITHOUT_EFFECT = ("disable_fallback", "backend", "backend_was_auto", "reasoning_backend")


def output_format(fields: GenerationFields) -> OutputFormat | None:
    """None: any text. Raises InvalidRequest."""
    found = [wish for wish in _wishes(fields) if wish is not None]
    if len(found) > 1:
        raise InvalidRequest(
            f"'{found[0].param}' and '{found[1].param}' both say what the answer has to be; send one of them.",
            param=found[1].param,
        )
    if fields.guided_whitespace_pattern is not None and found:
        return _with_blanks(found[0], _text(fields.guided_whitespace_pattern, "guided_whitespace_pattern"))
    return found[0] if found else None


def _wishes(fields: GenerationFields) -> Iterator[OutputFormat | None]:
    yield _response_format(fields.response_format)
    yield _structured_outputs(fields.structured_outputs)
    for name, reader in _READERS.items():
        value = getattr(fields, name)
        if not _is_not_given(value):
            yield reader(value, name)


def _is_not_given(value: Any) -> bool:
    """As some clients write what they do not want."""
    return value is None or value is False or value in ("", [])


def _response_format(wish: Any) -> OutputFormat | None:
    if _is_not_given(wish):
        return None
    if not isinstance(wish, Mapping):
        raise InvalidRequest("'response_format' must be an object with a 'type'.", param="response_format")
    kind = wish.get("type", "text")
    if kind == "json_schema":
        return _named_schema(wish.get("json_schema"))
    if kind == "json_object":
        if isinstance(wish.get("schema"), Mapping):  # llama.cpp's way
            return OutputFormat(kind="json_schema", value=wish["schema"], is_strict=False)
        return OutputFormat(kind="json_object")
    if kind != "text":
        raise InvalidRequest(
            f"'response_format.type' must be one of {', '.join(map(repr, _RESPONSE_FORMATS))}, got {as_sent(kind)}.",
            param="response_format.type",
        )
    return None


def _named_schema(named: Any) -> OutputFormat:
    """OpenAI's {name, schema, strict}."""
    if not isinstance(named, Mapping):
        raise InvalidRequest(
            "'response_format.json_schema' must be an object with a 'schema'.", param="response_format.json_schema"
        )
    schema = named.get("schema")
    if not isinstance(schema, Mapping | bool):
        raise InvalidRequest(
            "'response_format.json_schema.schema' must be a JSON schema, an object.",
            param="response_format.json_schema.schema",
        )
    strict = named.get("strict")
    if strict is not None and not isinstance(strict, bool):
        raise InvalidRequest(
            "'response_format.json_schema.strict' must be true or false.", param="response_format.json_schema.strict"
        )
    return OutputFormat(kind="json_schema", value=schema, is_strict=strict is True)


def _structured_outputs(wish: Any) -> OutputFormat | None:
    if _is_not_given(wish):
        return None
    if not isinstance(wish, Mapping):
        raise InvalidRequest("'structured_outputs' must be an object.", param="structured_outputs")
    found: list[OutputFormat] = []
    for name, value in wish.items():
        param = f"structured_outputs.{name}"
        if _is_not_given(value) or name in _BLANKS or name in _WITHOUT_EFFECT:
            continue
        if name not in _STRUCTURED:
            raise InvalidRequest(
                f"'{param}' is not supported; use one of {', '.join(map(repr, _STRUCTURED))}.", param=param
            )
        found.append(_STRUCTURED[name](value, param))
    if len(found) > 1:
        raise InvalidRequest(
            f"'{found[0].param}' and '{found[1].param}' both say what the answer has to be; send one of them.",
            param=found[1].param,
        )
    if not found:
        return None
    if wish.get("disable_any_whitespace"):
        return _with_blanks(found[0], "")
    if (pattern := wish.get("whitespace_pattern")) is not None:
        return _with_blanks(found[0], _text(pattern, "structured_outputs.whitespace_pattern"))
    return found[0]


def _with_blanks(wish: OutputFormat, blanks: str) -> OutputFormat:
    return OutputFormat(kind=wish.kind, value=wish.value, is_strict=wish.is_strict, blanks=blanks, param=wish.param)


def _text(value: Any, param: str) -> str:
    if not isinstance(value, str):
        raise InvalidRequest(f"'{param}' must be a text.", param=param)
    return value


def _schema(value: Any, param: str) -> OutputFormat:
    """An object, or the text of one."""
    if isinstance(value, str):
        try:
            value = msgspec.json.decode(value)
        except (msgspec.DecodeError, RecursionError) as error:
            raise InvalidRequest(f"'{param}' is not valid JSON: {error}.", param=param) from None
    if not isinstance(value, Mapping | bool):
        raise InvalidRequest(f"'{param}' must be a JSON schema, an object or its text.", param=param)
    return OutputFormat(kind="json_schema", value=value, is_strict=False, param=param)


def _regex(value: Any, param: str) -> OutputFormat:
    return OutputFormat(kind="regex", value=_text(value, param), param=param)


def _choice(value: Any, param: str) -> OutputFormat:
    if not isinstance(value, list) or not all(isinstance(text, str) and text for text in value):
        raise InvalidRequest(f"'{param}' must be a list of texts, none of them empty.", param=param)
    return OutputFormat(kind="choice", value=value, param=param)


def _grammar(value: Any, param: str) -> OutputFormat:
    return OutputFormat(kind="grammar", value=_text(value, param), param=param)


def _json_object(value: Any, param: str) -> OutputFormat:
    if value is not True:
        raise InvalidRequest(f"'{param}' must be true or false.", param=param)
    return OutputFormat(kind="json_object", param=param)


_Reader = Callable[[Any, str], OutputFormat]
_STRUCTURED: Mapping[str, _Reader] = {
    "json": _schema,
    "regex": _regex,
    "choice": _choice,
    "grammar": _grammar,
    "json_object": _json_object,
}
_READERS: Mapping[str, _Reader] = {
    "guided_json": _schema,
    "guided_regex": _regex,
    "guided_choice": _choice,
    "guided_grammar": _grammar,
    "regex": _regex,
    "ebnf": _grammar,
    "grammar": _grammar,
    "json_schema": _schema,
}
OUTPUT_FIELDS = ("response_format", "structured_outputs", *_READERS)
