"""What the tables show of a worker, a request, a session, a decision: columns, their order, and what words name a row.

Pure. A column says what is in it, not where it is drawn. Names come from strangers: they are made visible here.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from rich.cells import cell_len

from relevo.client.visible_text import one_line
from relevo.top.figures import UNKNOWN, bar, count, duration, milliseconds, percent, seconds
from relevo.top.state import Decision, Request, Session, State, Worker

_Row = TypeVar("_Row")
_BAR_WIDTH = 6
_TIME_FIRST = re.compile(r"^The [a-z ]+ took [\d.,]+ [a-z]+, of which ")
_ID_WIDTH = 16
_KV_TONES = ((0.95, "red"), (0.85, "yellow"))  # as the alerts on vllm:kv_cache_usage_perc have it
_DECISION_TONES: dict[str, str] = {
    "refuse": "yellow",
    "lost": "bold red",
    "fence": "red",
    "leave": "yellow",
    "ready": "green",
}
_ROLES = {"prefill": "pre", "decode": "dec", "unified": "uni", "hybrid": "hyb", "standby": "off"}


@dataclass(frozen=True, slots=True)
class Cell:
    text: str
    tone: str = ""  # a style of the terminal's own colours


@dataclass(frozen=True, slots=True)
class Column(Generic[_Row]):
    head: str
    width: int  # 0: what is left; one per table
    cell: Callable[[_Row], Cell]
    order: Callable[[_Row], Any] | None = None  # rows can be sorted by it, the largest first; None: they cannot
    is_number: bool = False  # aligned to the right
    min_screen: int = 0  # it is left out of narrower ones
    is_name: bool = False  # sorted from a to z


@dataclass(frozen=True, slots=True)
class Shape(Generic[_Row]):
    """Of one table."""

    title: str
    columns: tuple[Column[_Row], ...]
    words: Callable[[_Row], str]  # what a filter looks into
    key: Callable[[_Row], str]
    note: Callable[[_Row], str] = lambda row: ""  # in place of all columns after the third; empty: none
    first_order: str = ""  # head of the column that rows are sorted by; empty: as they come


def _name(text: str, tone: str = "") -> Cell:
    return Cell(one_line(text) or UNKNOWN, tone)


def _tail(text: str) -> Cell:
    """Of a request's name: ids of one API begin alike."""
    text = one_line(text)
    return _name(text if cell_len(text) <= _ID_WIDTH else "…" + text[1 - _ID_WIDTH :])


def _known(value: float | None) -> float:
    return -1.0 if value is None else value


def _kv_fraction(worker: Worker) -> float:
    blocks = worker.blocks
    return (blocks.num_held + blocks.num_quarantined) / blocks.num_total if blocks.num_total else 0.0


def _kv(worker: Worker) -> Cell:
    fraction = _kv_fraction(worker)
    tone = next((tone for least, tone in _KV_TONES if fraction >= least), "green")
    return Cell(f"{bar(fraction, _BAR_WIDTH)}{percent(fraction):>4}", tone)


def _tokens_per_s(worker: Worker) -> float | None:
    rates = [worker.rates.prefill_tokens_per_s, worker.rates.generation_tokens_per_s]
    known = [rate for rate in rates if rate is not None]
    return sum(known) if known else None


def _limit(worker: Worker) -> Cell:
    if worker.limit is None or worker.limit_fraction is None:
        return Cell(UNKNOWN, "dim")
    name = {"products": "ops", "bandwidth": "mem"}.get(worker.limit, one_line(worker.limit)[:3])
    return Cell(f"{percent(worker.limit_fraction)} {name}")


def _why_not_ready(worker: Worker) -> str:
    """Empty: it is."""
    if worker.is_ready:
        return ""
    running = f" ({worker.num_running} decode there)" if worker.num_running else ""
    return (one_line(worker.why_not_ready) or "not ready") + running


def worker_shape(slow: dict[str, float]) -> Shape[Worker]:
    """`slow`: factors by key, as `findings.slow_factors` has them."""

    def mark(worker: Worker) -> Cell:
        if not worker.is_ready:
            return Cell("○", "bold red")
        return Cell("!", "bold yellow") if worker.key in slow else Cell("●", "green")

    def name(worker: Worker) -> Cell:
        tone = "bold red" if not worker.is_ready else "bold yellow" if worker.key in slow else ""
        return _name(worker.worker_id, tone)

    def gap(value_s: float | None, worker: Worker) -> Cell:
        return Cell(milliseconds(value_s), "bold yellow" if worker.key in slow else "")

    columns: tuple[Column[Worker], ...] = (
        Column("", 1, mark),
        Column("WORKER", 0, name, lambda w: w.worker_id, is_name=True),
        Column("ROLE", 4, lambda w: Cell(_ROLES.get(w.role, one_line(w.role)[:4])), lambda w: w.role, is_name=True),
        Column("RUN", 4, lambda w: Cell(count(w.num_running)), lambda w: w.num_running, is_number=True),
        Column(
            "WAIT",
            4,
            lambda w: Cell(count(w.num_waiting), "yellow" if w.num_waiting else "dim"),
            lambda w: w.num_waiting,
            is_number=True,
        ),
        Column("KV CACHE", _BAR_WIDTH + 4, _kv, _kv_fraction),
        Column(
            "HIT",
            4,
            lambda w: Cell(percent(w.rates.hit_fraction)),
            lambda w: _known(w.rates.hit_fraction),
            is_number=True,
        ),
        Column("TOK/S", 5, lambda w: Cell(count(_tokens_per_s(w))), lambda w: _known(_tokens_per_s(w)), is_number=True),
        Column("BUSY", 4, lambda w: Cell(percent(w.busy_fraction)), lambda w: _known(w.busy_fraction), is_number=True),
        Column("LIMIT", 8, _limit, lambda w: _known(w.limit_fraction), is_number=True),
        Column("ITL p50", 7, lambda w: gap(w.itl.p50_s, w), lambda w: _known(w.itl.p50_s), is_number=True),
        Column("p99 ms", 6, lambda w: gap(w.itl.p99_s, w), lambda w: _known(w.itl.p99_s), is_number=True),
        Column("MODEL", 24, lambda w: _name(w.model), lambda w: w.model, is_name=True, min_screen=120),
    )
    return Shape(
        "Workers",
        columns,
        words=lambda w: f"{w.worker_id} {w.role} {w.model}",
        key=lambda w: w.key,
        note=_why_not_ready,
    )


def _request_state(request: Request) -> Cell:
    if not request.is_over:
        return Cell(f"▶ {one_line(request.phase)}", "green")
    if request.cause == "nothing":
        return Cell("as it should", "dim")
    return Cell(one_line(request.cause).replace("_", " ") or "ended")


def _reason(sentence: str) -> str:
    """Without the time that is in another column, where that is told first."""
    return one_line(_TIME_FIRST.sub("", sentence))


REQUESTS: Shape[Request] = Shape(
    "Requests",
    (
        Column("REQUEST", _ID_WIDTH, lambda r: _tail(r.request_id)),
        Column("STATE", 15, _request_state, lambda r: r.phase + r.cause, is_name=True),
        Column("TOTAL s", 7, lambda r: Cell(seconds(r.e2e_s)), lambda r: r.e2e_s, is_number=True),
        Column("TTFT s", 6, lambda r: Cell(seconds(r.ttft_s)), lambda r: _known(r.ttft_s), is_number=True),
        Column("IN", 5, lambda r: Cell(count(r.num_prompt_tokens)), lambda r: r.num_prompt_tokens, is_number=True),
        Column("OUT", 5, lambda r: Cell(count(r.num_output_tokens)), lambda r: r.num_output_tokens, is_number=True),
        Column("TENANT", 14, lambda r: _name(r.tenant), lambda r: r.tenant, is_name=True, min_screen=120),
        Column("MODEL", 16, lambda r: _name(r.model), lambda r: r.model, is_name=True, min_screen=140),
        Column("WHY", 0, lambda r: Cell(_reason(r.sentence))),
    ),
    words=lambda r: f"{r.request_id} {r.phase} {r.cause} {r.tenant} {r.model} {r.sentence}",
    key=lambda r: r.key,
    first_order="TOTAL s",
)


def _cached(session: Session) -> float | None:
    return session.num_cached_tokens / session.num_prompt_tokens if session.num_prompt_tokens else None


def session_shape(now_unix_s: float) -> Shape[Session]:
    return Shape(
        "Sessions",
        (
            Column("SESSION", 16, lambda s: _name(s.session)),
            Column("HOME", 0, lambda s: _name(s.home_worker_id), lambda s: s.home_worker_id, is_name=True),
            Column("REQS", 5, lambda s: Cell(count(s.num_requests)), lambda s: s.num_requests, is_number=True),
            Column(
                "PROMPT", 6, lambda s: Cell(count(s.num_prompt_tokens)), lambda s: s.num_prompt_tokens, is_number=True
            ),
            Column("CACHED", 6, lambda s: Cell(percent(_cached(s))), lambda s: _known(_cached(s)), is_number=True),
            Column(
                "SEEN",
                6,
                lambda s: Cell(duration(now_unix_s - s.last_seen_unix_s)),
                lambda s: s.last_seen_unix_s,
                is_number=True,
            ),
            Column("TENANT", 12, lambda s: _name(s.tenant), lambda s: s.tenant, is_name=True),
            Column("MODEL", 16, lambda s: _name(s.model), lambda s: s.model, is_name=True, min_screen=100),
        ),
        words=lambda s: f"{s.session} {s.home_worker_id} {s.tenant} {s.model}",
        key=lambda s: s.key,
        first_order="SEEN",
    )


DECISIONS: Shape[Decision] = Shape(
    "Decisions",
    (
        Column(
            "TIME",
            8,
            lambda d: Cell(time.strftime("%H:%M:%S", time.localtime(d.at_unix_s))),
            lambda d: (d.at_unix_s, d.number),
        ),
        Column("WHAT", 8, lambda d: _name(d.kind, _DECISION_TONES.get(d.kind, "")), lambda d: d.kind, is_name=True),
        Column("WORKER", 12, lambda d: _name(d.worker_id), lambda d: d.worker_id, is_name=True),
        Column("REQUEST", _ID_WIDTH, lambda d: _tail(d.request_id)),
        Column("REASON", 0, lambda d: Cell(one_line(d.reason))),
    ),
    words=lambda d: f"{d.kind} {d.worker_id} {d.request_id} {d.model} {d.reason}",
    key=lambda d: d.key,
    first_order="TIME",
)


def all_requests(state: State) -> list[Request]:
    """Those that run and those that ended, each once."""
    return list({each.request_id: each for each in (*state.requests.in_flight, *state.requests.slowest)}.values())


def arranged(shape: Shape[_Row], rows: list[_Row], order: str, text: str) -> list[_Row]:
    """Those that a filter lets through, sorted by the column with that head; by none: as they came."""
    if text:
        wanted = text.lower()
        rows = [row for row in rows if wanted in shape.words(row).lower()]
    column = next((each for each in shape.columns if each.head == order and each.order is not None), None)
    if column is None or column.order is None:
        return rows
    return sorted(rows, key=column.order, reverse=not column.is_name)


def orders(shape: Shape[_Row], screen_width: int) -> list[str]:
    """Heads of the columns on a screen of that width by which rows can be sorted."""
    return [each.head for each in shape.columns if each.order is not None and each.min_screen <= screen_width]
