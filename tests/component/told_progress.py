"""Progress that keeps what it is told."""

from __future__ import annotations

from dataclasses import dataclass, field

from relevo.telemetry.progress import Silent


@dataclass
class Told(Silent):
    stretches: list[tuple[str, float, float]] = field(default_factory=list)  # name, how much was done, of how much
    names: list[str] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)

    def begin(self, what: str, total: float = 0, unit: str = "") -> None:
        self.stretches.append((what, 0, total))
        self.names.append(what)

    def begin_for(self, what: str, seconds: float) -> None:
        self.begin(what, seconds)

    def rename(self, what: str) -> None:
        self.names.append(what)

    def advance(self, amount: float = 1) -> None:
        what, done, total = self.stretches[-1]
        self.stretches[-1] = (what, done + amount, total)

    def reach(self, done: float, total: float) -> None:
        self.stretches[-1] = (self.stretches[-1][0], done, total)

    def say(self, line: str) -> None:
        self.lines.append(line)
