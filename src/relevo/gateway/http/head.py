"""What a request's head must be before anything acts on it, and the ASGI scope it becomes.

Owns which heads are refused, with which status and words. Where two readers of one request could understand it
differently (two hosts, two keys, a path that another server would shorten), it is refused, not interpreted. Pure; what
a header's line may contain is the parser's to know. Sources: RFC 9112 (sections 3 and 6), RFC 9110 (section 7.2).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any
from urllib.parse import unquote_to_bytes

from relevo.gateway.http.errors import BadHttp, BadPath

MAX_HEAD_BYTES = 64 * 2**10  # of a request's fields, or of its trailers; arbitrary, proxies in front of us allow less
MAX_FIELDS = 100  # arbitrary: Apache's
MAX_TARGET_BYTES = 8 * 2**10  # of the request line; arbitrary: nginx's

_AT_MOST_ONCE = frozenset((b"host", b"authorization", b"x-api-key", b"content-type", b"content-encoding"))
_HOST = re.compile(
    rb"(?:[A-Za-z0-9._~!$&'()*+,;=%-]*|\[[0-9A-Fa-f:.]+(?:%(?:25)?[A-Za-z0-9._~-]+)?\])(?::[0-9]{0,5})?\Z"
)
_BAD_ESCAPE = re.compile(rb"%(?![0-9A-Fa-f]{2})")
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f\\]")


def check_framing(version: str, method: str, headers: Sequence[tuple[bytes, bytes]]) -> None:
    """Raises BadHttp."""
    if version not in ("1.0", "1.1"):
        raise BadHttp(f"This server speaks HTTP/1.1 and the request says HTTP/{version}; send HTTP/1.1.", 505)
    if method == "CONNECT":
        raise BadHttp("CONNECT opens a tunnel and this server is no proxy; send the request itself.", 501)
    names = [name for name, _ in headers if name in _AT_MOST_ONCE]
    for name in names:
        if names.count(name) > 1:
            raise BadHttp(f"The header {name.decode()} is there {names.count(name)} times; send it once.")
    if b"host" not in names and version == "1.1":
        raise BadHttp("The header Host is missing, which HTTP/1.1 asks for; add the name that the URL was made of.")
    for name, value in headers:
        if name == b"transfer-encoding":
            _check_coding(version, value)
        elif name == b"host" and not _HOST.match(value):
            raise BadHttp("The header Host is not a name or address with an optional port; send what is in the URL.")


def _check_coding(version: str, value: bytes) -> None:
    if version == "1.0":
        raise BadHttp("HTTP/1.0 has no Transfer-Encoding; send Content-Length, or speak HTTP/1.1.")
    if value.strip().lower() != b"chunked":
        raise BadHttp(f"Transfer-Encoding {value.decode('latin-1')!r} is not read here; use chunked alone.", 501)


def split_target(target: bytes, headers: list[tuple[bytes, bytes]]) -> tuple[bytes, bytes]:
    """Path and query as they came. A target with a host of its own (as proxies get it) replaces the Host header."""
    if target[:1] not in (b"/", b"*"):
        scheme, _, rest = target.partition(b"://")
        if scheme.lower() not in (b"http", b"https"):
            raise BadHttp("The request line names neither a path nor an http URL; send a path such as /v1/models.")
        end = min((rest.index(mark) for mark in (b"/", b"?", b"#") if mark in rest), default=len(rest))
        authority, target = rest[:end], rest[end:] if rest[end : end + 1] == b"/" else b"/" + rest[end:]
        if not authority or not _HOST.match(authority):
            raise BadHttp("The host in the request line is not a name or address with an optional port.")
        headers[:] = [(name, value) for name, value in headers if name != b"host"]
        headers.insert(0, (b"host", authority))
    path, _, query = target.partition(b"?")
    if b"#" in target:
        raise BadHttp("The request line has a '#'; what follows it is the client's own, send the URL without it.")
    return path, query


def decoded_path(raw_path: bytes) -> str:
    """Raises BadPath where a prefix of the path would not say where it leads."""
    if _BAD_ESCAPE.search(raw_path):
        raise BadPath("The path has a '%' without two hexadecimal digits; write %25 for the sign itself.")
    try:
        path = unquote_to_bytes(raw_path).decode()
    except UnicodeDecodeError:
        raise BadPath("The path is not UTF-8; encode it so before its bytes are percent-encoded.") from None
    if _UNPRINTABLE.search(path):
        raise BadPath("The path has a backslash or a control character; leave it away.")
    segments = path.split("/")[1:]
    if "." in segments or ".." in segments:
        raise BadPath("The path has a segment '.' or '..'; send the path that is meant.")
    if "" in segments[:-1]:
        raise BadPath("The path has an empty segment ('//'); join a base URL and a path with one '/'.")
    return path


def http_scope(
    method: str,
    version: str,
    target: bytes,
    headers: list[tuple[bytes, bytes]],
    root_path: str,
    connection: dict[str, Any],
) -> dict[str, Any]:
    """The ASGI scope. `connection`: what it has of the connection. Raises BadHttp, BadPath."""
    check_framing(version, method, headers)
    raw_path, query = split_target(target, headers)
    path = decoded_path(raw_path)
    return {
        **connection,
        "http_version": version,
        "method": method,
        "path": root_path + path,
        "raw_path": root_path.encode() + raw_path,
        "query_string": query,
        "root_path": root_path,
        "headers": headers,
    }
