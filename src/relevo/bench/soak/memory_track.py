"""Resident memory of processes over time, and how fast it grows.

Counts anonymous and file pages; shared memory is left out, it is the KV arena, whose pages are touched one by one. A
process that is replaced begins anew. Linux only: reads /proc.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

_LINES = re.compile(r"^(RssAnon|RssFile):\s+(\d+) kB", re.MULTILINE)
_MIN_SAMPLES = 5  # fewer are no line
_BYTES_PER_S_TO_MB_PER_H = 3600 / 1e6


@dataclass(slots=True)
class Track:
    """One process."""

    name: str
    pid: int
    at_s: list[float] = field(default_factory=list)
    resident_bytes: list[int] = field(default_factory=list)
    slope_mb_per_h: float | None = None  # None: it did not live long enough after its warm-up
    counted_s: float = 0.0  # of its life that the slope was fitted to


@dataclass(slots=True)
class MemoryTrack:
    tracks: dict[int, Track] = field(default_factory=dict)

    def look(self, at_s: float, processes: Mapping[int, str]) -> None:
        """One sample of each, by process id; what has ended meanwhile is passed over."""
        for pid, name in processes.items():
            found = resident_bytes(pid)
            if found is not None:
                track = self.tracks.setdefault(pid, Track(name, pid))
                track.name = name  # a worker says who it is once it is ready
                track.at_s.append(at_s)
                track.resident_bytes.append(found)

    def end(self, warm_up_s: float) -> None:
        """Fit the slopes, each to what comes `warm_up_s` after the process was first seen."""
        for track in self.tracks.values():
            after = [
                (at_s, size)
                for at_s, size in zip(track.at_s, track.resident_bytes, strict=True)
                if at_s >= track.at_s[0] + warm_up_s
            ]
            if len(after) >= _MIN_SAMPLES:
                track.counted_s = after[-1][0] - after[0][0]
                track.slope_mb_per_h = slope(after) * _BYTES_PER_S_TO_MB_PER_H


def resident_bytes(pid: int) -> int | None:
    """None: there is no such process any more."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return None
    sizes = [1024 * int(kilobytes) for _, kilobytes in _LINES.findall(status)]
    return sum(sizes) if sizes else None


def children_of(pid: int) -> dict[int, str]:
    """Processes below `pid`, with what they are called: `worker` or `gateway`, or their command."""
    found: dict[int, str] = {}
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            children = [int(child) for child in task.read_text().split()]
        except OSError:
            continue
        for child in children:
            found |= {child: _name(child), **children_of(child)}
    return found


def slope(points: list[tuple[float, int]]) -> float:
    """Of the least-squares line through (seconds, bytes): bytes per second."""
    mean_x = sum(x for x, _ in points) / len(points)
    mean_y = sum(y for _, y in points) / len(points)
    square = sum((x - mean_x) ** 2 for x, _ in points)
    return sum((x - mean_x) * (y - mean_y) for x, y in points) / square if square else 0.0


def _name(pid: int) -> str:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return "?"
    return next((w.decode() for w in words if w in (b"worker", b"gateway")), words[0].decode(errors="replace"))
