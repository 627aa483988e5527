"""Traces of lengths, with times or without, that say nothing of content unless it is given outright.

- Azure (Azure LLM inference traces, CSV): `TIMESTAMP,ContextTokens,GeneratedTokens`.
- BurstGPT (CSV): `Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type`, and `Session ID` in later
  versions. `Timestamp` is in seconds. A request without response tokens failed and is left out.
- Vidur (CSV): `num_prefill_tokens,num_decode_tokens`; no times.
- LLMServingSim (JSON lines): `input_toks`, `output_toks`, `arrival_time_ns` (or `arrival_time`, s), and `input_tok_ids`
  where recorded.
- ShareGPT (JSON lines): `{"turns": [[user, assistant], ...]}`: a session; its prompts hold the whole history. No times.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from itertools import chain, count

from relevo.workload.history import History
from relevo.workload.lengths import LONGEST
from relevo.workload.requests import WorkloadRequest
from relevo.workload.traces.rows import (
    ChainIds,
    Row,
    RowProblem,
    Tally,
    csv_rows,
    integer,
    json_rows,
    number,
    output_tokens,
)

AZURE_COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
BURSTGPT_COLUMNS = ("Timestamp", "Model", "Request tokens", "Response tokens")
VIDUR_COLUMNS = ("num_prefill_tokens", "num_decode_tokens")
FINE_BLOCK_SIZE = 16  # of the ids made here of recorded tokens; arbitrary, and what engines use


def read_azure(lines: Iterable[str], tally: Tally) -> Iterator[WorkloadRequest]:
    rows = count()

    def convert(row: Row) -> WorkloadRequest:
        return WorkloadRequest(
            row=next(rows),
            num_prompt_tokens=integer(row, "ContextTokens", 1),
            num_output_tokens=output_tokens(row, "GeneratedTokens", tally),
            arrived_at_s=_azure_seconds(row["TIMESTAMP"]),
        )

    return csv_rows(lines, AZURE_COLUMNS, convert)


def read_burstgpt(lines: Iterable[str], tally: Tally) -> Iterator[WorkloadRequest]:
    rows = count()

    def convert(row: Row) -> WorkloadRequest | None:
        num_output_tokens = integer(row, "Response tokens", 0)
        if num_output_tokens == 0:
            tally["failed requests (no response tokens) are left out"] += 1
            return None
        return WorkloadRequest(
            row=next(rows),
            num_prompt_tokens=integer(row, "Request tokens", 1),
            num_output_tokens=num_output_tokens,
            arrived_at_s=number(row, "Timestamp"),
            session_id=row.get("Session ID") or None,
            client=row["Model"] or None,
        )

    return csv_rows(lines, BURSTGPT_COLUMNS, convert)


def read_vidur(lines: Iterable[str], tally: Tally) -> Iterator[WorkloadRequest]:
    rows = count()

    def convert(row: Row) -> WorkloadRequest:
        return WorkloadRequest(
            row=next(rows),
            num_prompt_tokens=integer(row, "num_prefill_tokens", 1),
            num_output_tokens=output_tokens(row, "num_decode_tokens", tally),
        )

    return csv_rows(lines, VIDUR_COLUMNS, convert)


def read_llmservingsim(lines: Iterable[str], tally: Tally) -> Iterator[WorkloadRequest]:
    rows, chains = count(), ChainIds()

    def convert(row: Row) -> WorkloadRequest:
        token_ids = row.get("input_tok_ids") or ()
        if not isinstance(token_ids, Sequence):
            raise RowProblem(f"input_tok_ids is {str(token_ids)[:40]}; expected a list of token ids")
        ends = range(FINE_BLOCK_SIZE, len(token_ids) + 1, FINE_BLOCK_SIZE)
        try:
            ids = chains.ids(tuple(token_ids[end - FINE_BLOCK_SIZE : end]) for end in ends)
        except TypeError:  # not hashable
            raise RowProblem(f"input_tok_ids is {str(token_ids)[:40]}; expected a list of token ids") from None
        return WorkloadRequest(
            row=next(rows),
            num_prompt_tokens=integer(row, "input_toks", 1),
            num_output_tokens=output_tokens(row, "output_toks", tally),
            arrived_at_s=number(row, "arrival_time") if "arrival_time" in row else number(row, "arrival_time_ns") / 1e9,
            hash_ids=ids,
            hash_block_size=FINE_BLOCK_SIZE if ids else 0,
        )

    return json_rows(lines, convert)


def read_sharegpt(lines: Iterable[str], tally: Tally) -> Iterator[WorkloadRequest]:
    """A line is a session; each of its turns waits for the answer before it."""
    rows, fresh_ids = count(), count()

    def convert(line: Row) -> list[WorkloadRequest]:
        session_id = str(line.get("conversation", next(sessions)))
        history, requests = History(FINE_BLOCK_SIZE, fresh_ids), list[WorkloadRequest]()
        for turn, (num_asked, num_answered) in enumerate(_turns(line)):
            history.add(num_asked)
            requests.append(
                WorkloadRequest(
                    row=next(rows),
                    num_prompt_tokens=max(1, history.num_tokens),
                    num_output_tokens=max(1, num_answered),
                    gap_s=0.0 if turn else None,
                    parent=requests[-1].row if turn else None,
                    hash_ids=history.hash_ids,
                    hash_block_size=FINE_BLOCK_SIZE,
                    session_id=session_id,
                    turn=turn,
                )
            )
            history.add(num_answered)
        return requests

    sessions = count()
    return chain.from_iterable(json_rows(lines, convert))


def _turns(line: Row) -> list[tuple[int, int]]:
    turns = line.get("turns")
    try:
        lengths = [(int(asked), int(answered)) for asked, answered in turns or ()]
    except (TypeError, ValueError, OverflowError):
        lengths = []
    if not lengths or min(map(min, lengths)) < 0:
        raise RowProblem(f"turns is {str(turns)[:40]}; expected pairs of token counts, [[user, assistant], ...]")
    if sum(map(sum, lengths)) > LONGEST:
        raise RowProblem(f"turns is {str(turns)[:40]}; expected at most {LONGEST:,} tokens together")
    return lengths


def _azure_seconds(stamp: str) -> float:
    """Seconds of `2023-11-16 18:15:46.6805900`: seven decimals, one more than datetime reads. The traces of 2024 say
    that it is UTC."""
    whole, _, fraction = (stamp or "").strip().removesuffix("+00:00").partition(".")
    try:
        moment = datetime.fromisoformat(whole + "+00:00")
        return moment.timestamp() + (float(f"0.{fraction}") if fraction else 0.0)
    except ValueError:
        raise RowProblem(f"TIMESTAMP is {stamp!r}; expected one such as 2023-11-16 18:15:46.6805900") from None
