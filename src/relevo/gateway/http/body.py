"""Request bodies: read with a bound, parsed as a JSON object, checked against a schema.

Owns the wording of 400s for malformed bodies. Does not know any field. `null` at the top level means "not given".
"""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import re
from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec
import orjson
from starlette.requests import Request

from relevo.core.errors import InvalidRequest, Overloaded, RequestTooLarge, UnsupportedMediaType
from relevo.gateway.http.byte_account import ByteAccount
from relevo.gateway.http.sse import ClientGone

T = TypeVar("T")
_DISCARD_BYTES = 64 * 2**20  # arbitrary: a client that sends more learns by a reset
_DISCARD_S = 5.0  # arbitrary
_CHARSET = re.compile(r"(?i)(?:^|;)\s*charset\s*=\s*\"?([^\s\";]*)")
LONG_DIGITS = 38  # required: an integer of fewer has at most 128 bits
_LONG_NUMBER = re.compile(rb"[0-9]{%d}" % LONG_DIGITS)
_WINDOW_BYTES = 256 * 1024  # arbitrary
MAX_JSON_ITEMS = 200_000  # arbitrary; parsing them takes about 50 ms of one core, and 40,000 messages have as many
_PATH = re.compile(r" - at `\$\.?([^`]*)`$")


async def read_body(request: Request, max_body_bytes: int, memory: ByteAccount, tenant: str = "") -> bytes:
    """The whole body; its bytes are taken from `memory` and are the caller's to give back.

    Raises RequestTooLarge when the limit is passed, Overloaded when the bodies of all requests leave no memory for
    more; never holds more than either. What follows is read and thrown away for a while: a client that is still sending
    would otherwise see a reset connection instead of the answer.
    """
    too_large = RequestTooLarge(f"The request body is larger than {max_body_bytes} bytes, the limit of this server.")
    declared = request.headers.get("content-length", "")
    if declared.isascii() and declared.isdigit() and int(declared[:20]) > max_body_bytes:
        await _discard(request)
        raise too_large
    chunks: list[bytes] = []
    num_bytes = 0
    more_body = True
    try:
        while more_body:
            message = await request.receive()
            if message["type"] == "http.disconnect":
                raise ClientGone
            chunk = message.get("body", b"")
            if num_bytes + len(chunk) > max_body_bytes:
                raise too_large
            if not memory.take(len(chunk), tenant):
                raise Overloaded(
                    f"Request bodies of {memory.max_bytes} bytes are being read, which is the limit, or those of your "
                    "keys have their part of it."
                )
            num_bytes += len(chunk)
            chunks.append(chunk)
            more_body = message.get("more_body", False)
    except BaseException as error:
        chunks.clear()
        memory.give_back(num_bytes, tenant)
        if isinstance(error, RequestTooLarge | Overloaded):
            await _discard(request)
        raise
    return b"".join(chunks)


async def _discard(request: Request) -> None:
    """The rest of the body, within bounds."""
    num_bytes = 0
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_DISCARD_S):
            while num_bytes < _DISCARD_BYTES:
                message = await request.receive()
                num_bytes += len(message.get("body", b""))
                if message["type"] == "http.disconnect" or not message.get("more_body", False):
                    return


def check_media_type(content_type: str | None) -> None:
    """Raises UnsupportedMediaType unless the body is declared as JSON or not declared at all."""
    media_type, _, parameters = (content_type or "application/json").partition(";")
    media_type = media_type.strip().lower()
    is_json = media_type == "application/json" or (
        media_type.startswith("application/") and media_type.endswith("+json")
    )
    if not is_json:
        raise UnsupportedMediaType("Unsupported Media Type: Only 'application/json' is allowed")
    charset = _CHARSET.search(parameters)
    if charset is not None and charset.group(1).lower() not in ("utf-8", "utf8", "us-ascii"):
        raise UnsupportedMediaType(f"JSON is not read as charset {charset.group(1)!r} here; send it as UTF-8.")


def check_encoding(content_encoding: str | None) -> None:
    """Raises UnsupportedMediaType for a compressed body."""
    if (content_encoding or "identity").strip().lower() != "identity":
        raise UnsupportedMediaType(
            f"Content-Encoding {content_encoding!r} is not read here; send the body as plain JSON."
        )


def json_text(body: bytes) -> bytes:
    """`body` without a byte order mark. Raises InvalidRequest for encodings that are not UTF-8."""
    if body.startswith(codecs.BOM_UTF8):
        body = body[len(codecs.BOM_UTF8) :]
    if b"\0" in body[:4] or body.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise InvalidRequest("The request body looks like UTF-16 or UTF-32; send JSON as UTF-8.")
    return body


def check_num_items(body: bytes) -> None:
    """Raises InvalidRequest for more than `MAX_JSON_ITEMS` texts, names, lists and objects.

    A parser makes each of them in one go, however small it is, and nothing else runs meanwhile. Counted without
    parsing: exactly if it has to be, in a few passes of the C library.
    """
    if body.count(b'"') // 2 + body.count(b"{") + body.count(b"[") <= MAX_JSON_ITEMS:
        return
    unescaped = body.replace(b"\\\\", b"").replace(b'\\"', b"")
    num_texts = unescaped.count(b'"') // 2
    if num_texts <= MAX_JSON_ITEMS:
        outside = b"".join(unescaped.split(b'"')[::2])
        if num_texts + outside.count(b"{") + outside.count(b"[") <= MAX_JSON_ITEMS:
            return
    raise InvalidRequest(
        f"The request body holds more than {MAX_JSON_ITEMS} texts, names, lists and objects in all; send fewer."
    )


def parse_object(body: bytes) -> dict[str, Any]:
    """The JSON object in `body` without its null members. Raises InvalidRequest."""
    body = json_text(body)
    check_num_items(body)
    try:
        value = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        why = _why_not_utf8(body) or f"not valid JSON: {_why_not_json(body) or error}"
        raise InvalidRequest(f"The request body is {why}.") from None
    except RecursionError:
        raise InvalidRequest("The request body is nested too deeply.") from None
    if not isinstance(value, dict):
        raise InvalidRequest("The request body must be a JSON object.")
    if _has_long_number(body):
        _check_integers(value)
    return {name: member for name, member in value.items() if member is not None}


def _has_long_number(body: bytes) -> bool:
    """In windows: a search does not let other threads run, and one of 8 MB takes a tenth of a second."""
    return any(
        _LONG_NUMBER.search(body, start, start + _WINDOW_BYTES + LONG_DIGITS)
        for start in range(0, len(body), _WINDOW_BYTES)
    )


def _check_integers(members: Mapping[str, Any]) -> None:
    """Raises InvalidRequest for numbers that no field can mean. Schemas of tools lie deeper and may have any."""
    for name, member in members.items():
        inner = member.values() if isinstance(member, dict) else member if isinstance(member, list) else (member,)
        if any(type(number) is int and not -(2**127) <= number < 2**128 for number in inner):
            raise InvalidRequest(f"Invalid value for '{name}': an integer of more than 128 bits.", param=name)


def _why_not_utf8(body: bytes) -> str:
    """Empty if it is."""
    try:
        body.decode()
    except UnicodeDecodeError as error:
        return f"not UTF-8: byte 0x{body[error.start]:02x} at position {error.start}; encode JSON as UTF-8"
    return ""


def _why_not_json(body: bytes) -> str:
    """With line and column; empty if this parser would take it."""
    try:
        orjson.loads(body)
    except orjson.JSONDecodeError as error:
        return str(error)
    return ""


def check_schema(fields: dict[str, Any], schema: type[T]) -> T:
    """`fields` as a `schema` struct; members the schema does not have are ignored. Raises InvalidRequest."""
    try:
        return msgspec.convert(fields, schema)
    except msgspec.ValidationError as error:
        message, param = _explain(str(error))
        raise InvalidRequest(message, param=param) from None


def _explain(text: str) -> tuple[str, str | None]:
    """msgspec's message in our words, and the field that it is about."""
    found = _PATH.search(text)
    missing = re.search(r"missing required field `([^`]+)`", text)
    path = found.group(1).removesuffix("[...]") if found else ""
    if missing:
        path = f"{path}.{missing.group(1)}" if path else missing.group(1)
        return f"Missing required field '{path}'.", path
    reason = _PATH.sub("", text).replace(" | null", "").replace("`", "'")
    if not path:
        return f"Invalid request: {reason}.", None
    return f"Invalid value for '{path}': {reason[0].lower()}{reason[1:]}.", path
