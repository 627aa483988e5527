"""Which formats there are, and which of them a file has by its first line."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from enum import StrEnum

from relevo.workload.requests import WorkloadRequest
from relevo.workload.traces import hashed, plain, served
from relevo.workload.traces.rows import Tally

Reader = Callable[[Iterable[str], Tally], Iterator[WorkloadRequest]]
HashedReader = Callable[[Iterable[str], Tally, int], Iterator[WorkloadRequest]]


class TraceFormat(StrEnum):
    RELEVO = "relevo"
    MOONCAKE = "mooncake"
    BAILIAN = "bailian"
    AGENTS = "agents"
    AGENT_TEXT = "agent-text"
    AZURE = "azure"
    BURSTGPT = "burstgpt"
    VIDUR = "vidur"
    LLMSERVINGSIM = "llmservingsim"
    SHAREGPT = "sharegpt"
    SERVEGEN = "servegen"  # a folder or an archive
    FLEET_CDF = "fleet-cdf"


_PLAIN: dict[TraceFormat, Reader] = {
    TraceFormat.AZURE: plain.read_azure,
    TraceFormat.BURSTGPT: plain.read_burstgpt,
    TraceFormat.VIDUR: plain.read_vidur,
    TraceFormat.LLMSERVINGSIM: plain.read_llmservingsim,
    TraceFormat.SHAREGPT: plain.read_sharegpt,
}
_HASHED: dict[TraceFormat, tuple[HashedReader, int]] = {  # with the tokens of a block
    TraceFormat.MOONCAKE: (hashed.read_mooncake, hashed.MOONCAKE_BLOCK_SIZE),
    TraceFormat.BAILIAN: (hashed.read_bailian, hashed.FINE_BLOCK_SIZE),
    TraceFormat.AGENTS: (hashed.read_agents, hashed.FINE_BLOCK_SIZE),
    TraceFormat.AGENT_TEXT: (hashed.read_agent_text, hashed.FINE_BLOCK_SIZE),
}

# The first rule of which a JSON line has all keys, or a header all columns, decides.
_BY_KEYS = (
    (TraceFormat.RELEVO, {"kind", "at_s", "model"}),
    (TraceFormat.BAILIAN, {"chat_id", "input_length"}),
    (TraceFormat.AGENTS, {"session_id", "turn", "input_length", "hash_ids"}),
    (TraceFormat.AGENT_TEXT, {"session_id", "input", "output"}),
    (TraceFormat.MOONCAKE, {"input_length", "output_length"}),
    (TraceFormat.LLMSERVINGSIM, {"input_toks", "output_toks"}),
    (TraceFormat.SHAREGPT, {"turns"}),
    (TraceFormat.FLEET_CDF, {"cdf"}),
)
_BY_COLUMNS = (
    (TraceFormat.AZURE, set(plain.AZURE_COLUMNS)),
    (TraceFormat.BURSTGPT, set(plain.BURSTGPT_COLUMNS)),
    (TraceFormat.VIDUR, set(plain.VIDUR_COLUMNS)),
)


def recognise(first_line: str) -> TraceFormat | None:
    """The format of a file that begins with `first_line`; None if it is none of them."""
    text = first_line.strip()
    if text[:1] not in ("{", "["):
        return next((found for found, columns in _BY_COLUMNS if columns <= set(text.split(","))), None)
    try:
        row = json.loads(text)
    except (ValueError, RecursionError):
        return TraceFormat.FLEET_CDF if text in ("{", "[") else None  # a document over several lines
    if isinstance(row, list):
        return TraceFormat.FLEET_CDF
    return next((found for found, keys in _BY_KEYS if keys <= set(row)), None)


def read_rows(
    trace_format: TraceFormat,
    lines: Iterable[str],
    tally: Tally,
    block_size: int | None = None,
    part: str | None = None,
) -> Iterator[WorkloadRequest]:
    """The requests of a format that is read line by line, in the order of the file; `block_size` None: the format's.
    `part`: the model, where a file may hold several.

    Raises TraceError for a line that cannot be read, when it is reached.
    """
    if trace_format is TraceFormat.RELEVO:
        return served.read_served(lines, tally, part)
    if trace_format in _HASHED:
        reader, usual_block_size = _HASHED[trace_format]
        return reader(lines, tally, block_size or usual_block_size)
    return _PLAIN[trace_format](lines, tally)
