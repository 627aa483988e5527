"""Whose turn it is on a worker, and which tenant gives back what others lack: slots, blocks and prompt tokens.

A *party* is a tenant's requests of one class (interactive or batch). Slots and blocks are shared max-min: a free slot
goes to the waiting party that holds fewest for its weight, and a party that lacks one takes it from a party that would
still hold as much as it does itself afterwards. A party that is alone may hold everything. Prompt tokens of a step go
to the party that was served fewest since it came (virtual counters). A granted priority (below 0) goes before all of
that; inside a party the order is priority, then arrival.

Pure functions over what the line-up shows. Sources: max-min fairness (Bertsekas and Gallager, Data Networks, 1992);
Sheng et al., Fairness in Serving Large Language Models (OSDI 2024).
"""

from __future__ import annotations

import heapq
from collections import abc, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from relevo.core.request import EngineRequest
from relevo.policy.worker.worker_requests import Sequence

Party = tuple[bool, str]  # is batch, tenant

MAX_PASSED_POOLS = 4  # arbitrary: blocks of so many pools go to others before one that lacks blocks holds up the line


def party_of(request: EngineRequest) -> Party:
    return (request.terms.is_batch, request.terms.tenant)


def rank_of(request: EngineRequest) -> int:
    """Lower goes before all higher ones, whatever the shares are. Above 0 only a tenant's own requests are ordered."""
    return 1 if request.terms.is_batch else min(0, request.priority)


@dataclass(slots=True)
class Shares:
    """What each party holds of one resource, for its weight."""

    weights: Mapping[str, float]
    held: dict[Party, int] = field(default_factory=dict)

    def add(self, party: Party, num: int) -> None:
        self.held[party] = self.held.get(party, 0) + num

    def of(self, party: Party, more: int = 0) -> float:
        return (self.held.get(party, 0) + more) / self.weights.get(party[1], 1.0)


def in_turn(waiting: abc.Sequence[Sequence], slots: Shares) -> Iterator[Sequence]:
    """Waiting sequences in the order in which they would get slots, if each that is shown gets one."""
    lines: dict[tuple[int, Party], deque[Sequence]] = {}
    for sequence in waiting:
        lines.setdefault((rank_of(sequence.entry.request), party_of(sequence.entry.request)), deque()).append(sequence)
    if len(lines) <= 1:
        yield from waiting
        return
    extra: dict[Party, int] = {}
    heap = [(rank, slots.of(party), line[0].key, party) for (rank, party), line in lines.items()]
    heapq.heapify(heap)
    while heap:
        rank, _, _, party = heapq.heappop(heap)
        line = lines[rank, party]
        sequence = line.popleft()
        yield sequence
        extra[party] = extra.get(party, 0) + 1
        if line:
            heapq.heappush(heap, (rank, slots.of(party, extra[party]), line[0].key, party))


def gives_back(
    running: Iterable[Sequence], claim: Sequence, num_claimed: int, shares: Shares, size: Callable[[Sequence], int]
) -> Sequence | None:
    """The newest sequence of the party that holds most, if that party keeps at least as much as the claiming one will
    hold with `num_claimed` more. `size`: what it would give. `running` is in order of service."""
    mine, rank = party_of(claim.entry.request), rank_of(claim.entry.request)
    last: dict[Party, Sequence] = {}
    for sequence in running:
        party = party_of(sequence.entry.request)
        if party != mine and not sequence.entry.is_remote_prefill and rank_of(sequence.entry.request) >= rank:
            last[party] = sequence
    wanted = shares.of(mine, num_claimed)
    able = [party for party, sequence in last.items() if shares.of(party, -size(sequence)) >= wanted]
    return last[max(able, key=lambda party: (shares.of(party), last[party].key))] if able else None


@dataclass(slots=True)
class Served:
    """Prompt tokens of each present party, for its weight. A party that comes starts with the least of the others."""

    weights: Mapping[str, float]
    _tokens: dict[Party, float] = field(default_factory=dict)

    def present(self, parties: Iterable[Party]) -> None:
        """These have prompts to compute, no others."""
        here = {party: self._tokens.get(party) for party in parties}
        least = min((tokens for tokens in here.values() if tokens is not None), default=0.0)
        self._tokens = {party: least if tokens is None else tokens for party, tokens in here.items()}

    def of(self, party: Party) -> float:
        return self._tokens.get(party, 0.0)

    def add(self, party: Party, num_tokens: int) -> None:
        if party in self._tokens:
            self._tokens[party] += num_tokens / self.weights.get(party[1], 1.0)
