"""Whose turn it is on a worker, and which tenant gives back what others lack: slots, blocks and prompt tokens.

A *flow* is a tenant's requests of one class (interactive or batch). Slots and blocks are shared max-min: a free slot
goes to the waiting flow that holds fewest for its weight, and a flow that lacks one takes it from a flow that would
still hold as much as it does itself afterwards. A flow that is alone may hold everything. Prompt tokens of a step go
to the flow that was served fewest since it came (virtual counters). A granted priority (below 0) goes before all of
that; inside a flow the order is priority, then arrival.

Pure functions over what the queues show. Sources: max-min fairness (Bertsekas and Gallager, Data Networks, 1992);
Sheng et al., Fairness in Serving Large Language Models (OSDI 2024).
"""

from __future__ import annotations

import heapq
from collections import abc, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from relevo.core.request import EngineRequest
from relevo.policy.worker.worker_requests import Sequence

Flow = tuple[bool, str]  # is batch, tenant

MAX_PASSED_POOLS = 4  # arbitrary: blocks of so many pools go to others before one that lacks blocks holds up the line


def flow_of(request: EngineRequest) -> Flow:
    return (request.terms.is_batch, request.terms.tenant)


def rank_of(request: EngineRequest) -> int:
    """Lower goes before all higher ones, whatever the shares are. Above 0 only a tenant's own requests are ordered."""
    return 1 if request.terms.is_batch else min(0, request.priority)


@dataclass(slots=True)
class Shares:
    """What each flow holds of one resource, for its weight."""

    weights: Mapping[str, float]
    held: dict[Flow, int] = field(default_factory=dict)

    def add(self, flow: Flow, num: int) -> None:
        self.held[flow] = self.held.get(flow, 0) + num

    def of(self, flow: Flow, more: int = 0) -> float:
        return (self.held.get(flow, 0) + more) / self.weights.get(flow[1], 1.0)


def in_turn(waiting: abc.Sequence[Sequence], slots: Shares) -> Iterator[Sequence]:
    """Waiting sequences in the order in which they would get slots, if each that is shown gets one."""
    lines: dict[tuple[int, Flow], deque[Sequence]] = {}
    for sequence in waiting:
        lines.setdefault((rank_of(sequence.parent.request), flow_of(sequence.parent.request)), deque()).append(sequence)
    if len(lines) <= 1:
        yield from waiting
        return
    extra: dict[Flow, int] = {}
    heap = [(rank, slots.of(flow), line[0].key, flow) for (rank, flow), line in lines.items()]
    heapq.heapify(heap)
    while heap:
        rank, _, _, flow = heapq.heappop(heap)
        line = lines[rank, flow]
        sequence = line.popleft()
        yield sequence
        extra[flow] = extra.get(flow, 0) + 1
        if line:
            heapq.heappush(heap, (rank, slots.of(flow, extra[flow]), line[0].key, flow))


def gives_back(
    running: Iterable[Sequence], claim: Sequence, num_claimed: int, shares: Shares, size: Callable[[Sequence], int]
) -> Sequence | None:
    """The newest sequence of the flow that holds most, if that flow keeps at least as much as the claiming one will
    hold with `num_claimed` more. `size`: what it would give. `running` is in order of service."""
    mine, rank = flow_of(claim.parent.request), rank_of(claim.parent.request)
    last: dict[Flow, Sequence] = {}
    for sequence in running:
        flow = flow_of(sequence.parent.request)
        if flow != mine and not sequence.parent.is_remote_prefill and rank_of(sequence.parent.request) >= rank:
            last[flow] = sequence
    wanted = shares.of(mine, num_claimed)
    able = [flow for flow, sequence in last.items() if shares.of(flow, -size(sequence)) >= wanted]
    return last[max(able, key=lambda flow: (shares.of(flow), last[flow].key))] if able else None


@dataclass(slots=True)
class Served:
    """Prompt tokens of each present flow, for its weight. A flow that comes starts with the least of the others."""

    weights: Mapping[str, float]
    _tokens: dict[Flow, float] = field(default_factory=dict)

    def present(self, flows: Iterable[Flow]) -> None:
        """These have prompts to compute, no others."""
        here = {flow: self._tokens.get(flow) for flow in flows}
        least = min((tokens for tokens in here.values() if tokens is not None), default=0.0)
        self._tokens = {flow: least if tokens is None else tokens for flow, tokens in here.items()}

    def of(self, flow: Flow) -> float:
        return self._tokens.get(flow, 0.0)

    def add(self, flow: Flow, num_tokens: int) -> None:
        if flow in self._tokens:
            self._tokens[flow] += num_tokens / self.weights.get(flow[1], 1.0)
