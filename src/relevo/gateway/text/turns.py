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
    first_other = next((place for place, message in enumerate(messages) if message["role"] != "system"), len(messages))
    for place, message in enumerate(messages):
        if message["role"] != "system":
            continue
        if not form.knows_system or (place > first_other and not form.takes_late_system):
            moved[place] = {**message, "role": "user"}
    needs_joining = not form.takes_repeated_roles or not form.knows_system or not form.takes_late_system
    return _joined(moved, all_roles=not form.takes_repeated_roles) if needs_joining else moved


def _joined(messages: list[dict[str, Any]], *, all_roles: bool) -> list[dict[str, Any]]:
    """System texts that lead become one, and so does what one role says in a row: of all that merely speak, or of the
    user alone."""
    groups: list[list[dict[str, Any]]] = []
    roles = ("system", "user", "assistant") if all_roles else ("system", "user")
    for message in messages:
        last = groups[-1][-1] if groups else None
        may_join = last is not None and last["role"] == message["role"] and message["role"] in roles
        if last is not None and may_join and not last.get("tool_calls") and not message.get("tool_calls"):
            groups[-1].append(message)
        else:
            groups.append([message])
    return [group[0] if len(group) == 1 else _as_one(group) for group in groups]


def _as_one(group: list[dict[str, Any]]) -> dict[str, Any]:
    contents = [message["content"] for message in group if message["content"]]
    if all(isinstance(content, str) for content in contents):
        return {**group[0], "content": _BETWEEN.join(contents) if contents else group[-1]["content"]}
    return {**group[0], "content": [part for content in contents for part in _parts(content)]}


def _parts(content: Any) -> list[Any]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else list(content)
