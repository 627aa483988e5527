"""What came of a soak: every request and what its client saw, compared with the usage ledger. Knows no server."""

from __future__ import annotations

import contextlib
import sqlite3
from dataclasses import dataclass, field
from pathlib import Path

from relevo.bench.soak.memory_track import MemoryTrack


@dataclass(slots=True)
class Asked:
    """One request and what its client saw of it."""

    request_id: str
    kind: str  # question, leaver, nonsense
    path: str
    status: int = 0  # 0: no answer
    has_begun: bool = False  # the head of an answer, or an event, has come
    is_complete: bool = False
    num_completion_tokens: int | None = None
    wrong: str = ""

    @property
    def response_id(self) -> str:
        return ("chatcmpl-" if "chat" in self.path else "cmpl-") + self.request_id


@dataclass(slots=True)
class SoakResult:
    asked: list[Asked] = field(default_factory=list)
    kills: list[tuple[float, str]] = field(default_factory=list)  # seconds since the start, worker
    memory: MemoryTrack = field(default_factory=MemoryTrack)
    unaccounted: list[str] = field(default_factory=list)
    leftovers: str = ""  # what is still in use after the end

    def count(self, kind: str, *, complete: bool | None = None) -> int:
        return sum(1 for a in self.asked if a.kind == kind and complete in (None, a.is_complete))

    @property
    def wrong(self) -> list[str]:
        return [f"{a.response_id}: {a.wrong}" for a in self.asked if a.wrong]


def compare_with_ledger(asked: list[Asked], database: Path) -> list[str]:
    """Requests whose rows do not say what their clients saw, in words.

    A complete answer has one row, finished, with its tokens; one that had begun has one row, however it ended; one that
    was left before its head came may have one; a refused one has none; and there are no others.
    """
    with contextlib.closing(sqlite3.connect(database)) as connection:
        rows = connection.execute("SELECT response_id, outcome, completion_tokens FROM usage_ledger").fetchall()
    by_id: dict[str, list[tuple[str, int]]] = {}
    for response_id, outcome, num_tokens in rows:
        by_id.setdefault(response_id, []).append((outcome, num_tokens))
    wrong = [
        f"{response_id}: a row that was not asked for" for response_id in by_id.keys() - {a.response_id for a in asked}
    ]
    for one in asked:
        found = by_id.get(one.response_id, [])
        must_have = one.is_complete or (one.has_begun and one.status == 200)
        if len(found) > 1 or (must_have and not found) or (found and 400 <= one.status < 500):
            wrong.append(f"{one.response_id} ({one.kind}, HTTP {one.status}): {len(found)} rows")
        elif one.is_complete and found[0][0] != "finished":
            wrong.append(f"{one.response_id}: complete, but {found[0][0]} in the ledger")
        elif one.is_complete and one.num_completion_tokens not in (None, found[0][1]):
            wrong.append(f"{one.response_id}: {one.num_completion_tokens} tokens, {found[0][1]} in the ledger")
    return wrong
