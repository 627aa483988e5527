"""What this server was asked for, read back: the traffic log where there is one, else the ledger's lengths and times.

Owns what is refused of it and what is said about it. Never a text: neither source has any.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

from relevo import __version__
from relevo.core.errors import SettingsError, StartError
from relevo.gateway.metering.database import Connection, DatabaseError
from relevo.gateway.metering.ledger import MS_PER_DAY, RequestLengths, UsageFilter, request_lengths
from relevo.planner.traffic_log import PATTERN
from relevo.workload.busiest import busiest_hour
from relevo.workload.requests import Workload
from relevo.workload.timing import in_order
from relevo.workload.traces.rows import Tally, TraceError
from relevo.workload.traces.served import Replay, ServedRequest, ServingNote, served_rows

LEAST_REQUESTS = 20  # arbitrary: fewer are no traffic
_MOST_LISTED = 5


class NoHistory(SettingsError):
    """There is too little of it. `found`: what there is, without what to do."""

    def __init__(self, found: str, advice: str) -> None:
        super().__init__(f"{found}; {advice}")
        self.found = found


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryAsk:
    days: int
    folder: Path  # of the traffic log, whether or not it is there
    model: str | None = None  # None: there is only one
    now_ms: int

    @property
    def since_ms(self) -> int:
        return self.now_ms - self.days * MS_PER_DAY


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedHistory:
    """Of one model. `requests` are in the order of their coming."""

    source: str  # in words
    requests: Sequence[ServedRequest]
    serving: Sequence[ServingNote] = ()
    notes: tuple[str, ...] = ()

    @property
    def has_chains(self) -> bool:
        return any(request.chain for request in self.requests)

    def workload(self, *, warm: bool = False) -> Workload:
        """`warm`: what was cached of a request without a chain is taken for a beginning that its tenant's share."""
        tally = Tally()
        replay = Replay(tally, warm=warm)
        requests = [replay.request(served) for served in self.requests]
        notes = [f"{count:,} {what}" for what, count in tally.items()]
        if not self.has_chains:
            cached = sum(each.num_cached_tokens for each in self.requests)
            fraction = cached / sum(each.num_prompt_tokens for each in self.requests)
            use = "taken from it as measured, not from a cache" if warm else "counted on by nothing here"
            notes.append(
                f"{fraction:.0%} of its prompt tokens were cached; the ledger keeps no hash chains, so hits are {use}"
                " (--traffic-log-bytes keeps them)"
            )
        return Workload(requests=in_order(requests), notes=(*self.notes, *notes))

    def busiest_hour(self) -> ServedHistory:
        """By tokens, whole hours before the last request."""
        times_s = [request.at_s for request in self.requests]
        tokens = [request.num_prompt_tokens + request.num_output_tokens for request in self.requests]
        hour, places = busiest_hour(times_s, tokens)
        note = f"the busiest hour of {len(self.requests):,} requests; it ended {hour} h before the last of them"
        return ServedHistory(
            source=self.source,
            requests=[self.requests[place] for place in places],
            serving=self.serving,
            notes=(note, *self.notes),
        )


def read_history(ask: HistoryAsk, connection: Connection) -> ServedHistory:
    """Raises SettingsError, StartError."""
    logged = _read_log(ask)
    lengths = _of_model(_read_ledger(ask, connection), ask, logged.names, "the ledger")
    found = _of_model(logged.requests, ask, logged.names, "the traffic log")
    if len(found) < LEAST_REQUESTS:
        return ServedHistory(source="ledger", requests=_enough(lengths, ask))
    model = logged.names.get(found[0].model, found[0].model)
    notes = list(logged.notes)
    first_s = found[0].at_s
    num_since = sum(request.at_s >= first_s - 1.0 for request in lengths)
    if len(lengths) > num_since:
        notes.append(f"the traffic log begins {len(lengths) - num_since:,} requests later than the ledger")
    if num_since > len(found):
        notes.append(f"the traffic log has {len(found):,} of {num_since:,} requests that the ledger has since then")
    serving = [note for note in logged.serving if note.model == model]
    return ServedHistory(source="traffic log", requests=found, serving=serving, notes=tuple(notes))


@dataclass(frozen=True, slots=True)
class _Logged:
    requests: list[ServedRequest]
    serving: list[ServingNote]  # those before the time that is asked for among them
    names: dict[str, str]  # every name of a model, to its first
    notes: tuple[str, ...]


def _read_log(ask: HistoryAsk) -> _Logged:
    requests: list[ServedRequest] = []
    serving: list[ServingNote] = []
    num_unreadable = 0
    for path in sorted(ask.folder.glob(PATTERN)):
        try:
            for row in _rows_of(path):
                if row is None:
                    num_unreadable += 1
                elif isinstance(row, ServingNote):
                    serving.append(row)
                elif row.at_s * 1e3 >= ask.since_ms:
                    requests.append(row)
        except OSError as error:
            raise StartError(f"the traffic log {path} cannot be read: {error.strerror}") from error
    requests.sort(key=lambda request: request.at_s)
    names = {str(name): note.model for note in serving for name in _names_of(note)}
    notes = (f"{num_unreadable:,} lines of the traffic log cannot be read",) if num_unreadable else ()
    return _Logged(requests, sorted(serving, key=lambda note: note.at_s), names, notes)


def _rows_of(path: Path) -> Iterator[ServedRequest | ServingNote | None]:
    """None: a line that cannot be read; the last one of a process that was killed, for example."""
    with path.open(encoding="utf-8", errors="replace") as file:
        for line in file:
            try:
                yield from served_rows([line])
            except TraceError:
                yield None


def last_costs(folder: Path, model_hash: str) -> tuple[tuple[int, float, float, float], ...]:
    """Number of cores, and what steps of this model cost on them when this release served it from this folder last:
    another one's steps are others."""
    found: dict[int, tuple[int, float, float, float]] = {}
    for path in sorted(folder.glob(PATTERN)):
        with contextlib.suppress(OSError):
            for row in _rows_of(path):
                if isinstance(row, ServingNote) and _is_of(row, model_hash):
                    found |= _costs_of(row)
    return tuple(found.values())


def _is_of(note: ServingNote, model_hash: str) -> bool:
    return note.facts.get("model_hash") == model_hash and note.facts.get("release") == __version__


def _costs_of(note: ServingNote) -> dict[int, tuple[int, float, float, float]]:
    with contextlib.suppress(KeyError, TypeError, ValueError, AttributeError):
        costs = {
            int(n): tuple(map(float, row)) for worker in note.facts["workers"] for n, row in worker["costs"].items()
        }
        return {number: (number, *row) for number, row in costs.items() if len(row) == 3}
    return {}


def _names_of(note: ServingNote) -> Sequence[object]:
    names = note.facts.get("names")
    return names if isinstance(names, list) else ()


def _read_ledger(ask: HistoryAsk, connection: Connection) -> list[ServedRequest]:
    try:
        rows = request_lengths(connection, UsageFilter(since_ms=ask.since_ms))
    except DatabaseError as error:
        raise StartError(f"the usage ledger cannot be read: {error}") from error
    return [_served(row) for row in rows if row.num_prompt_tokens > 0]


def _served(row: RequestLengths) -> ServedRequest:
    return ServedRequest(
        at_s=row.started_at_ms / 1e3,
        model=row.model,
        tenant=blake2b(row.tenant.encode(), digest_size=8).hexdigest() if row.tenant else "",
        num_prompt_tokens=row.num_prompt_tokens,
        num_cached_tokens=min(row.num_cached_tokens, row.num_prompt_tokens),
        num_output_tokens=row.num_output_tokens,
        outcome=row.outcome,
        e2e_s=max(0, row.ended_at_ms - row.started_at_ms) / 1e3,
    )


def _of_model(
    requests: Sequence[ServedRequest], ask: HistoryAsk, names: dict[str, str], source: str
) -> list[ServedRequest]:
    """Those for the model that is asked for. Raises SettingsError for several without a choice."""
    by_model: Counter[str] = Counter(names.get(request.model, request.model) for request in requests)
    if ask.model is not None:
        wanted = names.get(ask.model, ask.model)
        return [request for request in requests if names.get(request.model, request.model) == wanted]
    if len(by_model) > 1:
        told = ", ".join(f"{model} ({count:,})" for model, count in by_model.most_common(_MOST_LISTED))
        raise SettingsError(
            f"{source} has requests for {len(by_model)} models of the last {_days(ask)}: {told}; choose one with"
            " --ledger-model"
        )
    return list(requests)


def _enough(requests: list[ServedRequest], ask: HistoryAsk) -> list[ServedRequest]:
    of_model = f" of {ask.model}" if ask.model else ""
    if not requests:
        raise NoHistory(
            f"the ledger has no request{of_model} of the last {_days(ask)}",
            "look further back, name the server's --data-dir or --database-url, or give a --trace",
        )
    if len(requests) < LEAST_REQUESTS:
        raise NoHistory(
            f"the ledger has {len(requests)} requests{of_model} of the last {_days(ask)}, and at least"
            f" {LEAST_REQUESTS} are needed to speak of traffic",
            "look further back, or give a --trace",
        )
    return requests


def _days(ask: HistoryAsk) -> str:
    return "day" if ask.days == 1 else f"{ask.days} days"
