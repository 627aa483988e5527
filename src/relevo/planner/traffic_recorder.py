"""Notes what each request of one model was, once it has ended, for the traffic log: lengths, times, a chain of blocks.

Owns the meeting of two halves that know it: the dispatcher has tokens and hashes, the HTTP side the times that a client
saw. Keeps no text and no name: blocks and tenants are hashed with a key that stays in the folder, so that who gets a
file cannot try texts or names against it. The work of hashing is the log's thread's.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

from relevo.core.ids import BlockHash, RequestId, TokenId
from relevo.core.ports import Clock
from relevo.orchestrator.in_flight import InFlightRequest
from relevo.policy.worker.prefix_cache import ROOT_HASH, block_hash
from relevo.telemetry.latency import RequestRecord, percentile
from relevo.workload.traces.served import ID_BYTES, ServedRequest, ServingNote

_MAX_UNPAIRED = 1024  # arbitrary: requests that have ended for the dispatcher, and not for their client
_TENANT_BYTES = 8


@dataclass(frozen=True, slots=True)
class _Ended:
    prompt: tuple[TokenId, ...]
    output: Sequence[TokenId]  # of the first continuation
    prompt_hashes: Sequence[BlockHash]
    salt: bytes
    is_batch: bool
    front_s: float | None


@dataclass(slots=True, kw_only=True)
class TrafficRecorder:
    """`put` takes what makes a row; `key`: of the folder; `model`: its first name, for what serves all of its names."""

    model: str
    block_size: int
    key: bytes
    put: Callable[[Callable[[], Mapping[str, Any]]], None]
    clock: Clock
    unix_s: Callable[[], float]
    num_requests: int = 0
    _ended: OrderedDict[RequestId, _Ended] = field(default_factory=OrderedDict)

    def ended(self, in_flight: InFlightRequest) -> None:
        """The dispatcher has no more of it. One that was turned away leaves nothing."""
        timeline, request = in_flight.timeline, in_flight.request
        if timeline.let_in_at_ns is None:
            return
        prepared_ns = timeline.prepared_at_ns
        self._ended[request.request_id] = _Ended(
            prompt=request.prompt_token_ids,
            output=in_flight.handoff.samples[0].output_token_ids,
            prompt_hashes=in_flight.prompt_hashes.of(self.block_size),
            salt=request.salt,
            is_batch=request.terms.is_batch,
            front_s=None if prepared_ns is None else (prepared_ns - timeline.accepted_at_ns) / 1e9,
        )
        if len(self._ended) > _MAX_UNPAIRED:
            self._ended.popitem(last=False)

    def finished(self, record: RequestRecord) -> None:
        """It is over for its client. Told of the requests of every model."""
        ended = self._ended.pop(record.request_id, None)
        if ended is None:
            return
        at_s = self.unix_s() - (self.clock.now_ns() - record.times.accepted_at_ns) / 1e9
        self.num_requests += 1
        self.put(lambda: self._served(record, ended, at_s).to_row())

    def serves(self, facts: Mapping[str, Any]) -> None:
        """What serves from now on."""
        note = ServingNote(at_s=self.unix_s(), model=self.model, facts=facts)
        self.put(note.to_row)

    def _served(self, record: RequestRecord, ended: _Ended, at_s: float) -> ServedRequest:
        gaps_s = sorted(record.times.itl_s)
        return ServedRequest(
            at_s=at_s,
            model=record.model,
            tenant=self._keyed(record.tenant.encode(errors="surrogatepass"), _TENANT_BYTES) if record.tenant else "",
            is_batch=ended.is_batch,
            num_prompt_tokens=record.num_prompt_tokens,
            num_cached_tokens=record.num_cached_tokens,
            num_output_tokens=record.num_longest_output_tokens,
            num_continuations=record.n,
            outcome=record.outcome,
            ttft_s=record.times.ttft_s,
            itl_p90_s=percentile(gaps_s, 0.9) if gaps_s else None,
            e2e_s=record.times.e2e_s,
            front_s=ended.front_s,
            block_size=self.block_size,
            chain=self._chain(ended, record.num_prompt_tokens + record.num_longest_output_tokens),
        )

    def _chain(self, ended: _Ended, num_tokens: int) -> array[int]:
        """Of the full blocks that a cache can have: the last token of an answer is computed by no step."""
        size, hashes = self.block_size, list(ended.prompt_hashes)
        tokens = [*ended.prompt[len(hashes) * size :], *ended.output][: max(0, num_tokens - len(hashes) * size)]
        for end in range(size, len(tokens), size):
            hashes.append(block_hash(hashes[-1] if hashes else ROOT_HASH, tokens[end - size : end], ended.salt))
        return array("q", (int(self._keyed(each, ID_BYTES), 16) for each in hashes))

    def _keyed(self, name: bytes, num_bytes: int) -> str:
        return blake2b(name, key=self.key, digest_size=num_bytes).hexdigest()
