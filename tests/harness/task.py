"""The task of every client, in rounds, and the script of what a model says to it.

A round asks for a marker that only the result of a call holds: its command adds two numbers. So the last word of a
round comes only if the call was read, run, sent back and rendered.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass

FIRST, AGAIN, KILLED = "first", "again", "killed"


@dataclass(frozen=True)
class Round:
    name: str
    word: str  # of the question
    sum: str  # of the command
    result: str
    pace_s: float = 0.0

    @property
    def question(self) -> str:
        return f"Print the marker {self.word} with the shell."

    @property
    def command(self) -> str:
        return f"echo relevo-$(({self.sum}))"

    @property
    def last_word(self) -> str:
        return f"Marker {self.word} is {self.result}."


ROUNDS = (
    Round(FIRST, "alpha-one", "40+2", "relevo-42"),
    Round(AGAIN, "beta-two", "80+4", "relevo-84"),
    Round(KILLED, "gamma-three", "120+6", "relevo-126", pace_s=0.03),  # long enough for a worker to be killed within
)


def hermes_call(name: str, arguments: dict[str, object]) -> str:
    """As the fake model's template shows it."""
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


@dataclass(frozen=True)
class Lines:
    """What the script says to one client."""

    call: Callable[[Round], str]  # first: usually words, and a call that runs the round's command
    last: Callable[[Round], str] | None = None  # with the result; None: there is no second turn
    side: tuple[tuple[str, str], ...] = ()  # text in the prompts of other requests that it sends, and the answer


def script(lines: Lines) -> str:
    """JSON. Rules of later rounds come first: a conversation that is continued holds the earlier ones too."""
    rules: list[dict[str, object]] = [{"contains": text, "say": answer} for text, answer in lines.side]
    for each in reversed(ROUNDS):
        if lines.last is not None:
            rules.append({"contains": [each.word, each.result], "say": lines.last(each)})
        rules.append({"contains": each.word, "say": lines.call(each), "pace_s": each.pace_s})
    return json.dumps({"rule": rules})
