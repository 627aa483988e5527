"""Traces that name the content of prompts by hash ids: Mooncake's, Bailian's and those of agent sessions.

- Mooncake (FAST'25 open traces): `timestamp` (ms), `input_length`, `output_length`, `hash_ids` (512 tokens each).
  With sessions, as load generators write them: `session_id`, and `delay` (ms after the answer to the row before it of
  its session) instead of a `timestamp`.
- Bailian (Alibaba's production traces): `chat_id`, `parent_chat_id` (-1: none), `timestamp` (s), `input_length`,
  `output_length`, `type`, `turn`, `hash_ids` (16 tokens each).
- Agents (sessions derived from LMCache's agent traces): `session_id`, `turn`, `timestamp` (ms after the session's
  start), `input_length`, `output_length`, `hash_ids` (16 tokens each, whole blocks only).
- Agents' text (LMCache's agent traces): `session_id`, `timestamp` (µs), `input` (the whole prompt), `output`.

An agent waits for its answer: a call begins after the answer before it has ended, and what these traces tell of the
pause is the gap between the two starts.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import count

from relevo.workload.requests import WorkloadRequest
from relevo.workload.traces.rows import ChainIds, Row, RowProblem, Tally, integer, json_rows, number, output_tokens

MOONCAKE_BLOCK_SIZE = 512  # required by the format
FINE_BLOCK_SIZE = 16  # of Bailian's and the agents' ids; required by the format
BYTES_PER_TOKEN = 4  # of recorded text; about what tokenizers make of English


def read_mooncake(lines: Iterable[str], tally: Tally, block_size: int) -> Iterator[WorkloadRequest]:
    rows, sessions = count(), _Sessions()

    def convert(row: Row) -> WorkloadRequest:
        session_id = None if row.get("session_id") is None else str(row["session_id"])
        waits = row.get("timestamp") is None and row.get("delay") is not None
        if waits and not sessions.has(session_id):
            raise RowProblem("delay without an earlier row of the same session_id; expected a timestamp")
        request = _lengths(row, next(rows), block_size, tally)
        at_s = None if waits else number(row, "timestamp") / 1e3
        gap_s = number(row, "delay") / 1e3 if waits else None
        return sessions.append(replace(request, arrived_at_s=at_s, session_id=session_id), gap_s)

    return json_rows(lines, convert)


def read_agents(lines: Iterable[str], tally: Tally, block_size: int) -> Iterator[WorkloadRequest]:
    rows, sessions = count(), _Sessions()

    def convert(row: Row) -> WorkloadRequest:
        request = _lengths(row, next(rows), block_size, tally)
        return sessions.append_call(replace(request, arrived_at_s=number(row, "timestamp") / 1e3), row)

    return json_rows(lines, convert)


def read_agent_text(lines: Iterable[str], tally: Tally, block_size: int) -> Iterator[WorkloadRequest]:
    rows, sessions, chains = count(), _Sessions(), ChainIds()
    block_bytes = block_size * BYTES_PER_TOKEN

    def convert(row: Row) -> WorkloadRequest:
        text, answer = row.get("input"), row.get("output")
        if not isinstance(text, str) or not isinstance(answer, str):
            raise RowProblem("input or output is no text; expected the prompt and the answer")
        data = text.encode(errors="surrogatepass")
        ends = range(block_bytes, len(data) + 1, block_bytes)
        request = WorkloadRequest(
            row=next(rows),
            num_prompt_tokens=max(1, len(data) // BYTES_PER_TOKEN),
            num_output_tokens=max(1, len(answer.encode(errors="surrogatepass")) // BYTES_PER_TOKEN),
            arrived_at_s=number(row, "timestamp") / 1e6,
            hash_ids=chains.ids(data[end - block_bytes : end] for end in ends),
            hash_block_size=block_size,
        )
        return sessions.append_call(request, row)

    return json_rows(lines, convert)


def read_bailian(lines: Iterable[str], tally: Tally, block_size: int) -> Iterator[WorkloadRequest]:
    rows = count()
    chats: dict[int, WorkloadRequest] = {}

    def convert(row: Row) -> WorkloadRequest:
        chat_id = integer(row, "chat_id", 0)
        before = chats.get(integer(row, "parent_chat_id", -1))
        chats[chat_id] = request = replace(
            _lengths(row, next(rows), block_size, tally),
            arrived_at_s=number(row, "timestamp"),
            parent=None if before is None else before.row,
            session_id=str(chat_id) if before is None else before.session_id,
            turn=max(0, integer(row, "turn", 0) - 1),
            client=str(row["type"]) if row.get("type") else None,
        )
        return request

    return json_rows(lines, convert)


class _Sessions:
    """The latest request of each session."""

    def __init__(self) -> None:
        self._last: dict[str, WorkloadRequest] = {}

    def has(self, session_id: str | None) -> bool:
        return session_id in self._last

    def append(self, request: WorkloadRequest, gap_s: float | None) -> WorkloadRequest:
        """`request` as the next turn of its session, if it has one."""
        if request.session_id is None:
            return request
        before = self._last.get(request.session_id)
        turn = request if before is None else replace(request, parent=before.row, turn=before.turn + 1, gap_s=gap_s)
        self._last[request.session_id] = turn
        return turn

    def append_call(self, request: WorkloadRequest, row: Row) -> WorkloadRequest:
        """An agent's call, which waits for the answer before it."""
        if row.get("session_id") is None:
            raise RowProblem("session_id is missing; expected it in every row")
        session_id = str(row["session_id"])
        before = self._last.get(session_id)
        started_s = before.arrived_at_s if before is not None else None
        gap_s = None if started_s is None or request.arrived_at_s is None else request.arrived_at_s - started_s
        return self.append(replace(request, session_id=session_id), None if gap_s is None else max(0.0, gap_s))


def _lengths(row: Row, number_of_row: int, block_size: int, tally: Tally) -> WorkloadRequest:
    num_prompt_tokens = integer(row, "input_length", 1)
    return WorkloadRequest(
        row=number_of_row,
        num_prompt_tokens=num_prompt_tokens,
        num_output_tokens=output_tokens(row, "output_length", tally),
        hash_ids=_hash_ids(row, num_prompt_tokens, block_size),
        hash_block_size=block_size,
    )


def _hash_ids(row: Row, num_prompt_tokens: int, block_size: int) -> array[int]:
    ids = row.get("hash_ids") or ()
    most = -(-num_prompt_tokens // block_size)
    try:
        chain = array("q", ids)
    except (TypeError, OverflowError):
        raise RowProblem(f"hash_ids is {str(ids)[:60]}; expected a list of whole numbers") from None
    if len(chain) > most:
        raise RowProblem(
            f"{len(chain)} hash ids for {num_prompt_tokens} prompt tokens; expected at most {most},"
            f" one for every {block_size} tokens (--trace-block-size names another size)"
        )
    return chain
