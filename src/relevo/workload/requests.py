"""The one record of a request that is to be sent: what readers of traces and generators make, and what a load generator
or the simulator takes.

A prompt is a length and the ids of its content in runs of equal length, never a list of tokens: twelve thousand
requests of a production hour hold 144 million of them. Knows neither files, formats nor clocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadRequest:
    """One request. It arrives `gap_s` after the answer of `parent` has ended, or at `arrived_at_s` if there is no gap.

    `hash_ids[i]` names the content of prompt tokens [i * hash_block_size, (i + 1) * hash_block_size): two prompts that
    begin with the same ids begin with the same tokens. What lies beyond the last id is shared with no other request.
    """

    row: int  # the request's number in its source, from 0; `parent` refers to it
    num_prompt_tokens: int  # at least 1
    num_output_tokens: int  # at least 1
    arrived_at_s: float | None = None  # after the first request of the source; None: the source has no times
    gap_s: float | None = None  # None: does not wait for `parent`
    parent: int | None = None  # row of the request whose answer this prompt goes on from
    hash_ids: Sequence[int] = ()
    hash_block_size: int = 0  # tokens; 0: there are no ids
    session_id: str | None = None
    turn: int = 0  # within the session, from 0
    client: str | None = None  # tenant, model or kind of traffic, as far as the source tells

    @property
    def is_closed_loop(self) -> bool:
        return self.gap_s is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Requests in the order of their rows' arrivals; those that wait for a parent come after it.

    `notes` are sentences about what was changed or left out on the way here, for the report.
    """

    requests: Sequence[WorkloadRequest]
    notes: tuple[str, ...] = ()

    @property
    def hash_block_size(self) -> int | None:
        """Tokens per hash id; None if no request has ids. Sources do not mix sizes."""
        return next((request.hash_block_size for request in self.requests if request.hash_ids), None)

    @property
    def is_closed_loop(self) -> bool:
        return any(request.is_closed_loop for request in self.requests)
