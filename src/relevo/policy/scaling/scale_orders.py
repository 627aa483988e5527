"""When a command that brings workers is to be run, with which number, and who leaves before it is told of fewer. Pure.

The command is told the number that is wanted, and makes it so; it runs once at a time, and again after a failure, later
each time. Nodes are given back whole: they are asked to leave first, and the command is told once they have. Knows no
command and no cluster.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

_FIRST_AGAIN_S, _MOST_AGAIN_S = 5.0, 300.0  # after a failure; doubled with each. Arbitrary
_LEAVE_S = 600.0  # after which the command is told whether a node has left or not. Arbitrary


class CommandOutcome(StrEnum):
    DONE = "done"
    FAILED = "failed"
    TIMED_OUT = "timed out"


@dataclass(frozen=True, slots=True)
class LentNode:
    """A machine that lends workers; one of the head's own cannot be given back."""

    name: str
    num_workers: int
    serves: bool = True


@dataclass(frozen=True, slots=True)
class Leave:
    """These nodes are to finish what they have, and leave for good."""

    nodes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RunCommand:
    number: int
    given_back: tuple[str, ...]  # nodes that have left, or had the time to


def to_give_back(nodes: Sequence[LentNode], number: int) -> tuple[str, ...]:
    """With so many workers at the most. `nodes`: as they came. Those that do not serve first, then the last ones."""
    found = []
    latest_first = nodes[::-1]
    for node in sorted(latest_first, key=lambda node: node.serves):
        if 0 < node.num_workers <= number:
            found.append(node.name)
            number -= node.num_workers
    return tuple(found)


@dataclass(slots=True)
class ScaleOrders:
    told: int | None = None  # that the command has been run with, or that was found
    is_running: bool = False
    num_failed: int = 0  # in a row
    _again_s: float = 0.0  # not before
    _leaving: dict[str, float] = field(default_factory=dict)  # by node: since when
    _given_back: tuple[str, ...] = ()  # that the command has yet to be told of
    _is_due: bool = False

    def adopt(self, number: int) -> None:
        """So many there are, by a person's hand: the command has nothing to do with it."""
        self.told, self._is_due = number, False

    def next(self, wanted: int, num_own: int, nodes: Sequence[LentNode], now_s: float) -> Leave | RunCommand | None:
        """`num_own`: workers of the head itself, that stay. `nodes`: that are here, as they came. None: nothing is to
        be done now."""
        here = {node.name for node in nodes}
        leaving = {name: at_s for name, at_s in self._leaving.items() if name in here and now_s - at_s < _LEAVE_S}
        self._leaving = leaving
        staying = [node for node in nodes if node.name not in leaving]
        num_there = num_own + sum(node.num_workers for node in staying)
        if self.told is None:
            self.told = num_there
        if wanted < self.told and not self.is_running:
            nodes_back = to_give_back(staying, num_there - wanted)
            self.told, self._is_due = wanted, True
            if nodes_back:
                self._leaving |= dict.fromkeys(nodes_back, now_s)
                self._given_back += nodes_back
                return Leave(nodes_back)
        if self.is_running or now_s < self._again_s or (wanted == self.told and (self._leaving or not self._is_due)):
            return None
        given_back = tuple(name for name in self._given_back if name not in self._leaving)
        self.told, self.is_running, self._is_due = wanted, True, bool(self._leaving)
        return RunCommand(wanted, given_back)

    def ended(self, command: RunCommand, now_s: float, *, is_done: bool) -> None:
        self.is_running = False
        if is_done:
            self.num_failed, self._again_s = 0, 0.0
            self._given_back = tuple(name for name in self._given_back if name not in command.given_back)
            return
        self._is_due = True
        self._again_s = now_s + min(_MOST_AGAIN_S, _FIRST_AGAIN_S * 2.0**self.num_failed)
        self.num_failed += 1

    def again_in_s(self, now_s: float) -> float:
        return max(0.0, self._again_s - now_s)
