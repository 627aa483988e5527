"""How the values of settings are written: lengths, sizes, lists, networks, keys, JSON. Knows no setting."""

from __future__ import annotations

import ipaddress
import json
import re
import shlex
from collections.abc import Callable
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field
from pydantic_core import PydanticCustomError

from relevo.core.ports import MAX_DURATION_S

_SUFFIX_TOKENS = {"k": 1_000, "K": 1_024, "m": 1_000_000, "M": 1_048_576}
_TARGET = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,12})?|\.[0-9]{1,12}) ?(ms|s)")
_SUFFIX_BYTES = {"k": 10**3, "m": 10**6, "g": 10**9, "ki": 2**10, "mi": 2**20, "gi": 2**30}


def parse_length(value: object) -> object:
    """`8192`, `8k` (8,000), `8K` (8,192), `auto` or -1 (the largest that fits): vLLM's notation."""
    if not isinstance(value, str):
        return value
    text = value.strip()
    if text in ("auto", "-1"):
        return None
    if text and text[-1] in _SUFFIX_TOKENS and text[:-1].replace(".", "", 1).isdigit():
        return int(float(text[:-1]) * _SUFFIX_TOKENS[text[-1]])
    return value


def parse_bytes(value: object) -> object:
    """`2GiB`, `500M`, `1073741824`, `auto`."""
    if not isinstance(value, str):
        return value
    text = value.strip()
    if text == "auto":
        return None
    body = text.rstrip("bB")
    for suffix in sorted(_SUFFIX_BYTES, key=len, reverse=True):
        number = body[: -len(suffix)]
        if body.lower().endswith(suffix) and number.replace(".", "", 1).isdigit():
            return int(float(number) * _SUFFIX_BYTES[suffix])
    return body if body.isdigit() else value


def parse_target(most_without_unit_s: float) -> Callable[[object], object]:
    """Of a latency: `500ms`, `2s`, or a number of seconds, which has to say its unit where that is hardly meant: one
    a thousand times too long is never missed, so nothing would ever show the slip."""

    def parse(value: object) -> object:
        if isinstance(value, str) and (match := _TARGET.fullmatch(value.strip())):
            return float(match[1]) / (1e3 if match[2] == "ms" else 1.0)
        try:
            number = float(value)  # type: ignore[arg-type]
        except (TypeError, ValueError):
            return value
        if number > most_without_unit_s:
            raise PydanticCustomError(
                "unit_missing",
                "{number} without a unit is {number} seconds, and more than {most} are hardly meant; write {number}ms, "
                "or {number}s if they are",
                {"number": f"{number:g}", "most": f"{most_without_unit_s:g}"},
            )
        return value

    return parse


def parse_list(value: object) -> object:
    """Comma separated text from the environment; a list from the command line."""
    if isinstance(value, str):
        return tuple(part.strip() for part in value.split(",") if part.strip())
    return value


def parse_networks(value: object) -> object:
    """As `parse_list`, each an address or a network in CIDR notation."""
    networks = parse_list(value)
    for text in networks if isinstance(networks, list | tuple) else ():
        try:
            ipaddress.ip_network(str(text), strict=False)
        except ValueError:
            raise PydanticCustomError(
                "network", "{text} is neither an address nor a network such as 10.0.0.0/8", {"text": str(text)}
            ) from None
    return networks


def parse_keys(value: object) -> object:
    """As `parse_list`, for keys that fit into a header. Empty is refused: it would open a server meant to be closed."""
    keys = parse_list(value)
    if isinstance(keys, list | tuple) and not (keys and all(map(_fits_into_a_header, keys))):
        raise PydanticCustomError(
            "api_key", "a key is printable ASCII without spaces around it; leave the setting out to serve without keys"
        )
    return keys


def _fits_into_a_header(key: object) -> bool:
    return isinstance(key, str) and key != "" and key.isascii() and key.isprintable() and key == key.strip()


def parse_parts(value: object) -> object:
    """As `parse_list`; each entry of a list may name several too: `--cores 0,1`."""
    return parse_list(",".join(map(str, value))) if isinstance(value, list) else parse_list(value)


def parse_words(value: object) -> object:
    """Words of the environment, between spaces; a list from the command line as it is: commas belong to its entries."""
    return tuple(value.split()) if isinstance(value, str) else value


def parse_shell(value: object) -> object:
    """As a shell splits them; a list from the command line as it is."""
    return tuple(shlex.split(value)) if isinstance(value, str) else value


def parse_command(value: object) -> object:
    """As a shell splits it, from the command line, too: there one flag holds the whole command."""
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        return value
    return tuple(word for text in texts for word in shlex.split(text))


def parse_json_object(value: object) -> object:
    """JSON from the command line or the environment; a table of the file of models as it is."""
    if not isinstance(value, str):
        return value
    try:
        document = json.loads(value)
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, dict):
        raise PydanticCustomError("json_object", 'must be a JSON object, such as {"temperature": 0.5}')
    return document


Length = Annotated[int | None, BeforeValidator(parse_length)]
Bytes = Annotated[int | None, BeforeValidator(parse_bytes)]
Names = Annotated[tuple[str, ...], BeforeValidator(parse_list)]
Keys = Annotated[tuple[str, ...], BeforeValidator(parse_keys)]
Networks = Annotated[tuple[str, ...], BeforeValidator(parse_networks)]
JsonObject = Annotated[dict[str, Any], BeforeValidator(parse_json_object)]
Seconds = Annotated[float, Field(le=MAX_DURATION_S)]
TtftTarget = Annotated[float | None, Field(le=MAX_DURATION_S), BeforeValidator(parse_target(60.0))]
ItlTarget = Annotated[float | None, Field(le=MAX_DURATION_S), BeforeValidator(parse_target(5.0))]
Parts = Annotated[tuple[str, ...], BeforeValidator(parse_parts)]
Words = Annotated[tuple[str, ...], BeforeValidator(parse_words)]
ShellWords = Annotated[tuple[str, ...], BeforeValidator(parse_shell)]
Command = Annotated[tuple[str, ...], BeforeValidator(parse_command)]
DTypeName = Literal["auto", "float32", "bfloat16", "float16"]
KVDTypeName = Literal["auto", "float32", "bfloat16", "float16", "int8"]
