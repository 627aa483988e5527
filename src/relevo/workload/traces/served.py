"""Relevo's own record of what it served, line by line: what a request was, never what it said.

Owns the words of the lines and how a chain of blocks is written. Two kinds: `request`, once it has ended, and
`serving`, what served since then. The chain names every full block of prompt and answer by a hash that is keyed with a
secret of the folder and cut to six bytes, so that equal beginnings of one tenant can be seen, and no text can be tried.
"""

from __future__ import annotations

from array import array
from base64 import b64decode, b64encode
from binascii import Error as NoBase64
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from relevo.workload.requests import WorkloadRequest
from relevo.workload.traces.rows import EMPTY_ANSWERS, LARGEST, Row, RowProblem, Tally, integer, json_rows, number

REQUEST, SERVING = "request", "serving"
ID_BYTES = 6  # of a block: of a million blocks two are alike once in 500 times
WARM_BLOCK_SIZE = 16  # of beginnings that are made up of numbers of cached tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedRequest:
    """One that was let in. Times are of the gateway, as its client saw them; None: it did not come so far."""

    at_s: float  # Unix time of its arrival
    model: str  # as the client called it
    tenant: str = ""  # a keyed hash; empty: a client without an API key
    is_batch: bool = False
    num_prompt_tokens: int
    num_cached_tokens: int
    num_output_tokens: int  # of the longest continuation
    num_continuations: int = 1
    outcome: str = "finished"
    ttft_s: float | None = None
    itl_p90_s: float | None = None  # of its own gaps
    e2e_s: float | None = None
    front_s: float | None = None  # until it was read, templated and tokenized
    block_size: int = 0  # 0: there is no chain
    chain: Sequence[int] = field(default_factory=lambda: array("q"))  # of the full blocks of prompt and answer

    def to_row(self) -> dict[str, Any]:
        return {
            "kind": REQUEST,
            "at_s": round(self.at_s, 6),
            "model": self.model,
            "tenant": self.tenant,
            "class": "batch" if self.is_batch else "interactive",
            "prompt": self.num_prompt_tokens,
            "cached": self.num_cached_tokens,
            "output": self.num_output_tokens,
            "n": self.num_continuations,
            "outcome": self.outcome,
            "ttft_s": _rounded(self.ttft_s),
            "itl_p90_s": _rounded(self.itl_p90_s),
            "e2e_s": _rounded(self.e2e_s),
            "front_s": _rounded(self.front_s),
            "block_size": self.block_size,
            "chain": b64encode(b"".join(each.to_bytes(ID_BYTES, "big") for each in self.chain)).decode(),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingNote:
    """What served one model from `at_s` on. `facts` are plain values, read by who knows workers."""

    at_s: float
    model: str
    facts: Mapping[str, Any]

    def to_row(self) -> dict[str, Any]:
        return {"kind": SERVING, "at_s": round(self.at_s, 6), "model": self.model, "facts": dict(self.facts)}


def served_rows(lines: Iterable[str]) -> Iterator[ServedRequest | ServingNote]:
    """Raises TraceError, with the line."""
    return json_rows(lines, served_row)


def served_row(row: Row) -> ServedRequest | ServingNote:
    """Raises RowProblem."""
    kind, model = row.get("kind"), row.get("model")
    if kind not in (REQUEST, SERVING) or not isinstance(model, str):
        raise RowProblem(f"kind is {str(kind)[:40]}; expected {REQUEST} or {SERVING}, and a model")
    at_s = number(row, "at_s")
    if kind == SERVING:
        facts = row.get("facts")
        if not isinstance(facts, dict):
            raise RowProblem("facts is missing; expected what served")
        return ServingNote(at_s=at_s, model=model, facts=facts)
    return _request(row, at_s, model)


def _request(row: Row, at_s: float, model: str) -> ServedRequest:
    num_prompt, num_output = integer(row, "prompt", 1), integer(row, "output", 0)
    block_size, chain = integer(row, "block_size", 0), _chain(row)
    if len(chain) * block_size > num_prompt + num_output:
        raise RowProblem(f"{len(chain)} blocks of {block_size} for {num_prompt + num_output} tokens; expected fewer")
    return ServedRequest(
        at_s=at_s,
        model=model,
        tenant=str(row.get("tenant") or ""),
        is_batch=row.get("class") == "batch",
        num_prompt_tokens=num_prompt,
        num_cached_tokens=min(integer(row, "cached", 0), num_prompt),
        num_output_tokens=num_output,
        num_continuations=integer(row, "n", 1),
        outcome=str(row.get("outcome") or ""),
        ttft_s=_perhaps(row, "ttft_s"),
        itl_p90_s=_perhaps(row, "itl_p90_s"),
        e2e_s=_perhaps(row, "e2e_s"),
        front_s=_perhaps(row, "front_s"),
        block_size=block_size if chain else 0,
        chain=chain,
    )


def _chain(row: Row) -> array[int]:
    try:
        written = b64decode(row.get("chain") or "", validate=True)
    except (NoBase64, TypeError, ValueError):
        written = b"?"
    if len(written) % ID_BYTES:
        raise RowProblem(f"chain is no base64 of blocks of {ID_BYTES} bytes each")
    return array("q", (int.from_bytes(written[at : at + ID_BYTES], "big") for at in range(0, len(written), ID_BYTES)))


def _perhaps(row: Row, key: str) -> float | None:
    return None if row.get(key) is None else number(row, key)


def _rounded(value_s: float | None) -> float | None:
    return None if value_s is None else round(value_s, 6)


def read_served(lines: Iterable[str], tally: Tally, model: str | None) -> Iterator[WorkloadRequest]:
    """As a trace: the requests for one model. Several without a choice are a mistake."""
    replay, found = Replay(tally), model

    def convert(row: Row) -> WorkloadRequest | None:
        nonlocal found
        served = served_row(row)
        if isinstance(served, ServingNote) or (model is not None and served.model != model):
            return None
        if found is None:
            found = served.model
        if served.model != found:
            raise RowProblem(f"a request for {served.model} after some for {found}; choose one with --trace-part")
        return replay.request(served)

    return json_rows(lines, convert)


class Replay:
    """Makes requests that can be sent again of those that were served, in the order of their coming.

    A request goes on from the one whose whole chain it begins with. Without chains its measured cached tokens are taken
    for the beginning that all requests of its tenant share (`warm`), or for none.
    """

    def __init__(self, tally: Tally, *, warm: bool = False) -> None:
        self._tally = tally
        self._warm = warm
        self._rows_by_end: dict[int, WorkloadRequest] = {}  # by the last block of a chain
        self._tenants: dict[str, int] = {}
        self._num_rows = 0

    def request(self, served: ServedRequest) -> WorkloadRequest:
        if not served.num_output_tokens:
            self._tally[EMPTY_ANSWERS] += 1
        if served.num_continuations > 1:
            self._tally["requests for several continuations are taken for one of the longest"] += 1
        before = self._before(served)
        ids, size = self._ids(served)
        request = WorkloadRequest(
            row=self._num_rows,
            num_prompt_tokens=served.num_prompt_tokens,
            num_output_tokens=max(1, served.num_output_tokens),
            arrived_at_s=served.at_s,
            hash_ids=ids,
            hash_block_size=size,
            parent=None if before is None else before.row,
            session_id=str(self._num_rows) if before is None else before.session_id,
            turn=0 if before is None else before.turn + 1,
            client=served.tenant or None,
        )
        self._num_rows += 1
        if len(served.chain) * served.block_size > served.num_prompt_tokens:  # its last block is one of its answer
            self._rows_by_end[served.chain[-1]] = request
        return request

    def _before(self, served: ServedRequest) -> WorkloadRequest | None:
        num_in_prompt = served.num_prompt_tokens // served.block_size if served.block_size else 0
        found = (self._rows_by_end.get(each) for each in reversed(served.chain[:num_in_prompt]))
        return next((request for request in found if request is not None), None)

    def _ids(self, served: ServedRequest) -> tuple[Sequence[int], int]:
        if served.chain or not self._warm:
            return served.chain, served.block_size
        self._tally["requests have no chain of blocks: what was cached of them is taken for a shared beginning"] += 1
        tenant = self._tenants.setdefault(served.tenant, len(self._tenants))
        first = tenant * (LARGEST // 2**20)
        num_warm = min(served.num_cached_tokens, served.num_prompt_tokens - 1) // WARM_BLOCK_SIZE
        return array("q", range(first, first + num_warm)), WARM_BLOCK_SIZE if num_warm else 0
