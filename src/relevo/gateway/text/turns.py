"""Fits the order of roles to what a template takes: agents write system texts anywhere, and two questions in a row.

Nothing is dropped; a text moves to the next role that the template knows. Templates that take what clients send are
given it unchanged. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

_BETWEEN = "\n\n"


@dataclass(frozen=True, slots=True)
class TurnForm:
    """What one template takes."""

    knows_system: bool = True  # no: its text is put before the first of the user's
    takes_late_system: bool = True  # behind other messages; no: it becomes a text of the user's
    takes_repeated_roles: bool = True  # no: what one role says in a row becomes one message


def fit_turns(messages: list[dict[str, Any]], form: TurnForm) -> list[dict[str, Any]]:
    if form == TurnForm():
        return messages
    moved = list(messages)
    for place, message in enumerate(messages):
        if message["role"] != "system":
            continue
        if not form.knows_system or (place and not form.takes_late_system and not _leads(messages, place)):
            moved[place] = {**message, "role": "user"}
    needs_joining = not form.takes_repeated_roles or not form.knows_system or not form.takes_late_system
    return _joined(moved, all_roles=not form.takes_repeated_roles) if needs_joining else moved


def _leads(messages: list[dict[str, Any]], place: int) -> bool:
    """Whether only system texts come before it: they become one."""
    return all(message["role"] == "system" for message in messages[:place])


def _joined(messages: list[dict[str, Any]], *, all_roles: bool) -> list[dict[str, Any]]:
    """System texts that lead become one, and so does what one role says in a row: of all that merely speak, or of the
    user alone."""
    joined: list[dict[str, Any]] = []
    roles = ("system", "user", "assistant") if all_roles else ("system", "user")
    for message in messages:
        last = joined[-1] if joined else None
        may_join = last is not None and last["role"] == message["role"] and message["role"] in roles
        if last is not None and may_join and not last.get("tool_calls") and not message.get("tool_calls"):
            joined[-1] = {**last, "content": _both(last["content"], message["content"])}
        else:
            joined.append(message)
    return joined


def _both(first: Any, second: Any) -> Any:
    if not first or not second:
        return first or second
    if isinstance(first, str) and isinstance(second, str):
        return first + _BETWEEN + second
    return [*_parts(first), *_parts(second)]


def _parts(content: Any) -> list[Any]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else list(content)
