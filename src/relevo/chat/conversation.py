"""What has been said, and how answers are to be drawn: the body of the next request. Pure.

Owns what `/set` takes. Ranges are the server's to judge; here only that a value is of the right kind.
"""

from __future__ import annotations

import math
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from relevo.core.errors import SettingsError


def _number(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError("not finite")
    return value


SETTABLE: dict[str, tuple[Callable[[str], Any], str]] = {
    "temperature": (_number, "a number"),
    "top_p": (_number, "a number"),
    "top_k": (int, "a whole number"),
    "min_p": (_number, "a number"),
    "max_tokens": (int, "a whole number"),
    "seed": (int, "a whole number"),
    "presence_penalty": (_number, "a number"),
    "frequency_penalty": (_number, "a number"),
    "repetition_penalty": (_number, "a number"),
    "stop": (str, "a text"),
}


@dataclass(slots=True)
class Conversation:
    system: str = ""
    settings: dict[str, Any] = field(default_factory=dict)
    turns: list[dict[str, str]] = field(default_factory=list)
    session_id: str = field(default_factory=lambda: uuid.uuid4().hex)  # by which a router may find its cache

    def set(self, name: str, text: str) -> None:
        """An empty text gives the choice back to the server. Raises SettingsError."""
        if name not in SETTABLE:
            raise SettingsError(f"{name!r} cannot be set; these can: {', '.join(SETTABLE)}")
        parse, kind = SETTABLE[name]
        if not text:
            self.settings.pop(name, None)
            return
        try:
            self.settings[name] = parse(text)
        except ValueError:
            raise SettingsError(f"{name} is {kind}, not {text!r}; write for example {_EXAMPLES[kind](name)}") from None

    def ask(self, question: str) -> None:
        self.turns.append({"role": "user", "content": question})

    def take(self, answer: str) -> None:
        """The answer to the last question; an empty one takes the question back, as if it had not been asked."""
        if answer:
            self.turns.append({"role": "assistant", "content": answer})
        elif self.turns and self.turns[-1]["role"] == "user":
            self.turns.pop()

    def reset(self) -> None:
        """Forget what was said; the system prompt and the settings stay."""
        self.turns.clear()
        self.session_id = uuid.uuid4().hex

    def body(self, model: str) -> dict[str, Any]:
        """Of the request for the next answer."""
        system = [{"role": "system", "content": self.system}] if self.system else []
        return {
            "model": model,
            "messages": [*system, *self.turns],
            "stream": True,
            "stream_options": {"include_usage": True},
            **self.settings,
        }


_EXAMPLES: dict[str, Callable[[str], str]] = {
    "a number": lambda name: f"/set {name} 0.7",
    "a whole number": lambda name: f"/set {name} 40",
    "a text": lambda name: f"/set {name} END",
}
