"""Which session a request belongs to: a key from what clients send, or from how the conversation begins.

A key is a preference for the router, never a right: it is hashed together with the tenant, so no tenant can name
another's session, and nothing about content follows from it. Precedence follows what coding agents and gateways send;
`user` names a tenant rather than a session, and `x-request-id` is new every time, so neither is read.

Without any key the beginning of the conversation is hashed: model, first system text, tools, first user message. What
changes from request to request though the prompt is meant to be the same is left out there, and out of the prompt
itself by `without_markers`: `cache_control` (agents move it along as the conversation grows) and billing nonces (a
system block that some agents put first). Does not know workers.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from relevo.core.errors import InvalidRequest

KEY_BYTES = 16
MAX_KEY_CHARS = 255  # arbitrary; more of a client's key than this is not looked at
MAX_NESTING = 100  # arbitrary; levels of objects and lists in a message or tool, far from the interpreter's stack
MAX_PROMPT_HEAD = 1024  # characters or token ids of a completion prompt, which grows: only its head is stable
FROM_CONTENT = "content"  # the source of a key that no name of a client's gave
BILLING_PREFIX = "x-anthropic-billing-header:"

_HEADERS_FIRST = ("x-session-affinity", "x-session-id")
_HEADERS_AFTER_BODY = (
    "x-claude-code-agent-id",
    "x-claude-code-session-id",
    "x-opencode-session",
    "x-affinity",
    "session-id",
    "thread-id",
    "session_id",
    "conversation_id",
    "x-openwebui-chat-id",
    "x-dynamo-session-id",
    "x-smg-routing-key",
    "x-litellm-session-id",
)
_VENDORS_HEADER = re.compile(r"x-[a-z0-9-]+-session-id")  # a client that is not known by name
_HEADERS_LAST = ("x-correlation-id",)
_BODY_FIELDS = ("session_id", "prompt_cache_key", "promptCacheKey")
_SYSTEM_ROLES = ("system", "developer")


@dataclass(frozen=True, slots=True)
class Affinity:
    key: bytes  # 16 bytes; equal for requests that should meet the same KV cache
    source: str  # the header or field it came from, or FROM_CONTENT


def affinity_of(
    headers: Mapping[str, str],
    body: Mapping[str, Any],
    *,
    tenant: str,
    model: str,
    extra_headers: Sequence[str] = (),
) -> Affinity:
    """`headers` are looked up in lower case. `extra_headers` are the operator's own, asked last before the content.

    The same value under two names is the same session. Raises InvalidRequest as `without_markers` does.
    """
    for source, value in _named(headers, body, extra_headers):
        if isinstance(value, str) and (text := value.strip()):
            return Affinity(_digest(tenant, "session", text[:MAX_KEY_CHARS]), source)
    return Affinity(_digest(tenant, "content", model, *_beginning(body)), FROM_CONTENT)


def without_markers(items: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Messages or tools as they should reach template and hash: without `cache_control` and billing nonces.

    Order and everything else stay. The input is not changed. Raises InvalidRequest for more than `MAX_NESTING` levels.
    """
    return [_without_nonce(_plain(item)) for item in items]


def _named(
    headers: Mapping[str, str], body: Mapping[str, Any], extra_headers: Sequence[str]
) -> list[tuple[str, object]]:
    found: list[tuple[str, object]] = [(name, headers.get(name)) for name in _HEADERS_FIRST]
    found += [(f"body.{name}", body.get(name)) for name in _BODY_FIELDS]
    found += [(name, headers.get(name)) for name in _HEADERS_AFTER_BODY]
    found += [(name, headers.get(name)) for name in sorted(filter(_VENDORS_HEADER.fullmatch, headers))]
    found += [(name, headers.get(name)) for name in _HEADERS_LAST]
    found.append(("body.metadata.user_id", _session_in_metadata(body.get("metadata"))))
    found += [(name.lower(), headers.get(name.lower())) for name in extra_headers]
    return found


def _session_in_metadata(metadata: object) -> object:
    """`metadata.user_id` may be a JSON text with a `session_id`; any other user id names no session."""
    user_id = metadata.get("user_id") if isinstance(metadata, Mapping) else None
    if not isinstance(user_id, str) or not user_id.startswith("{"):
        return None
    try:
        members = json.loads(user_id)
    except (ValueError, RecursionError):
        return None
    return members.get("session_id") if isinstance(members, dict) else None


def _beginning(body: Mapping[str, Any]) -> list[str]:
    """What tells one conversation from another, though it grows: the parts that come first."""
    messages = body.get("messages")
    if not isinstance(messages, list):
        prompt = body.get("prompt")
        return [_text(prompt[:MAX_PROMPT_HEAD] if isinstance(prompt, str | list | tuple) else prompt)]
    system, user = _first_content(messages, _SYSTEM_ROLES), _first_content(messages, ("user",))
    tools = body.get("tools")
    names = without_markers([tool for tool in tools if isinstance(tool, Mapping)]) if isinstance(tools, list) else []
    return [_text(system), _text(names), _text(user)]


def _first_content(messages: Sequence[Any], roles: tuple[str, ...]) -> object:
    for message in messages:
        if isinstance(message, Mapping) and message.get("role") in roles:
            return without_markers([message])[0].get("content")
    return ""


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True, default=str)


def _plain(value: Any, num_levels: int = MAX_NESTING) -> Any:
    """Deep copy without `cache_control` members. Raises InvalidRequest if it has more than `num_levels` levels."""
    if not isinstance(value, Mapping | list):
        return value
    if not num_levels:
        raise InvalidRequest(f"Messages and tools may be nested {MAX_NESTING} levels deep, and one of them is deeper.")
    if isinstance(value, Mapping):
        return {key: _plain(member, num_levels - 1) for key, member in value.items() if key != "cache_control"}
    return [_plain(member, num_levels - 1) for member in value]


def _without_nonce(message: dict[str, Any]) -> dict[str, Any]:
    content = message.get("content")
    if message.get("role") not in _SYSTEM_ROLES:
        return message
    if isinstance(content, str) and content.lstrip().startswith(BILLING_PREFIX):
        return message | {"content": content.lstrip().partition("\n")[2].lstrip("\n")}
    if isinstance(content, list):
        return message | {"content": [part for part in content if not _is_nonce(part)]}
    return message


def _is_nonce(part: object) -> bool:
    text = part.get("text") if isinstance(part, Mapping) else None
    return isinstance(text, str) and text.lstrip().startswith(BILLING_PREFIX)


def _digest(*parts: str) -> bytes:
    digest = blake2b(digest_size=KEY_BYTES)
    for part in parts:
        data = part.encode("utf-8", "surrogatepass")
        digest.update(len(data).to_bytes(4, "little") + data)
    return digest.digest()
