"""Which result belongs to which call, and how a template wants both to be called. Pure.

Clients keep the ids that they were given, or make up their own: again from 0 in every turn, none at all, or of another
model's form. Source: the chat templates of Mistral (nine letters and digits) and Kimi K2 (`functions.NAME:NUMBER`).
"""

from __future__ import annotations

import hashlib
import re
from collections import OrderedDict, deque
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any

_ALPHABET = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_NINE = re.compile(r"[A-Za-z0-9]{9}")


class CallIdForm(StrEnum):
    ANY = "any"
    NINE = "nine"  # characters of [A-Za-z0-9], or the template refuses them
    COUNTED = "counted"  # functions.NAME:NUMBER, counted over the conversation


def pair_calls(messages: list[dict[str, Any]], form: CallIdForm) -> list[dict[str, Any]]:
    """The messages, where results have the id and the name of the call they answer, in the template's form.

    A result belongs to the open call of its id; where none has it, to the call that has waited longest; where none
    waits, it stays alone.
    """
    waiting = _WaitingCalls()
    num_calls = 0
    paired = []
    for message in messages:
        if calls := message.get("tool_calls"):
            named = []
            for call in calls:
                name = call["function"]["name"]
                call_id = _in_form(call.get("id"), name, num_calls, form)
                waiting.add(call.get("id"), call_id, name)
                named.append({**call, "type": "function", "id": call_id})
                num_calls += 1
            message = {**message, "tool_calls": named}
        elif message["role"] == "tool":
            message = _answered(message, waiting, num_calls, form)
        elif message["role"] == "user":
            waiting.clear()  # what was not answered by now will not be
        paired.append(message)
    return paired


def _answered(message: dict[str, Any], waiting: _WaitingCalls, num_calls: int, form: CallIdForm) -> dict[str, Any]:
    asked = message.get("tool_call_id")
    call = waiting.take(asked)
    if call is None:
        name = message.get("name")
        name = name if isinstance(name, str) else "unknown"
        return {**message, "tool_call_id": _in_form(asked, name, num_calls, form)}
    call_id, name = call
    return {"name": name, **message, "tool_call_id": call_id}


class _WaitingCalls:
    """That have no result yet: each the template's id and the tool, by the client's id."""

    def __init__(self) -> None:
        self._calls: OrderedDict[int, tuple[str, str]] = OrderedDict()  # by number, oldest first
        self._numbers: dict[str, deque[int]] = {}  # by the client's id; those of calls that are answered too
        self._num_added = 0

    def add(self, given: Any, call_id: str, name: str) -> None:
        self._numbers.setdefault(_key(given), deque()).append(self._num_added)
        self._calls[self._num_added] = (call_id, name)
        self._num_added += 1

    def take(self, given: Any) -> tuple[str, str] | None:
        """The oldest of that id, else the oldest; None: none waits."""
        numbers = self._numbers.get(_key(given), deque())
        while numbers:
            call = self._calls.pop(numbers.popleft(), None)
            if call is not None:
                return call
        return self._calls.popitem(last=False)[1] if self._calls else None

    def clear(self) -> None:
        self._calls.clear()
        self._numbers.clear()


def _key(given: Any) -> str:
    """Clients send ids of any type."""
    return given if isinstance(given, str) else f"\0{given!r}"


def _in_form(given: Any, name: str, number: int, form: CallIdForm) -> str:
    known = given if isinstance(given, str) and given else f"call_{number}"
    if form is CallIdForm.COUNTED:
        return f"functions.{name}:{number}"
    if form is CallIdForm.NINE and not _NINE.fullmatch(known):
        digest = int.from_bytes(hashlib.blake2b(known.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "big")
        return "".join(_ALPHABET[digest // 62**place % 62] for place in range(9))
    return known


def num_calls(messages: Sequence[Mapping[str, Any]]) -> int:
    """Of a conversation up to now."""
    return sum(len(calls) for message in messages if isinstance(calls := message.get("tool_calls"), list))
