"""What each tenant has under way at the workers, of this gateway: continuations, prompt tokens, requests without a
first token, and the tokens that each stream has still to give.

The door reads it to send a tenant what its share of a worker allows although others fill that worker: the worker takes
it from them (`policy.worker.fair_turns`), because it sees the requests of every gateway. Unknown names never raise.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from relevo.core.ids import RequestId, WorkerRef


@dataclass(slots=True)
class Held:
    """By one tenant, on one worker."""

    num_requests: int = 0
    num_slots: int = 0
    num_prompt_tokens: int = 0  # to be computed there


@dataclass(slots=True)
class Sent:
    """A request that was sent to be decoded."""

    tenant: str
    decode: WorkerRef
    num_slots: int
    prefill: WorkerRef | None = None
    num_prompt_tokens: int = 0
    is_started: bool = False
    num_least_tokens: int = 0  # of each of its outputs: it gives no slot back before
    num_output_tokens: int = 0  # so far, of all of its outputs

    @property
    def num_left_tokens(self) -> int:
        """At least so many steps until a slot of it is free, unless its client goes."""
        return max(0, self.num_least_tokens - self.num_output_tokens)


@dataclass(slots=True)
class TenantUse:
    _sent: dict[RequestId, Sent] = field(default_factory=dict)
    _by_worker: dict[WorkerRef, dict[RequestId, Sent]] = field(default_factory=dict)  # that decodes
    _held: dict[WorkerRef, dict[str, Held]] = field(default_factory=dict)
    _num_unstarted: dict[str, int] = field(default_factory=dict)
    _versions: dict[WorkerRef, int] = field(default_factory=dict)  # where something is held; no number comes twice
    _num_changes: int = 0

    @property
    def is_empty(self) -> bool:
        return not (self._sent or self._by_worker or self._held or self._num_unstarted)

    def version(self, worker: WorkerRef) -> int:
        """Another one after every change of what is held or was sent there; what was given shows in `sent` itself."""
        return self._versions.get(worker, 0)

    def held(self, worker: WorkerRef) -> Mapping[str, Held]:
        """By tenant; who holds nothing is not named."""
        return self._held.get(worker, {})

    def num_unstarted(self, tenant: str) -> int:
        """Requests that were sent and have no token yet."""
        return self._num_unstarted.get(tenant, 0)

    def sent(self, worker: WorkerRef) -> Collection[Sent]:
        """What decodes there or will, as it is at any time."""
        return self._by_worker.get(worker, {}).values()

    def decodes(
        self, request_id: RequestId, tenant: str, worker: WorkerRef, num_slots: int, num_least_tokens: int = 0
    ) -> None:
        """It was sent to be decoded there, with as many continuations as can run at once. After the loss of a worker:
        again, with what it has given so far."""
        before = self._sent.get(request_id)
        is_started, num_output_tokens = (before.is_started, before.num_output_tokens) if before else (False, 0)
        self.end(request_id)
        sent = Sent(tenant, worker, num_slots, is_started=is_started, num_least_tokens=num_least_tokens)
        sent.num_output_tokens = num_output_tokens
        self._sent[request_id] = self._by_worker.setdefault(worker, {})[request_id] = sent
        if not is_started:
            self._num_unstarted[tenant] = self.num_unstarted(tenant) + 1
        self._add(worker, tenant, 1, num_slots, 0)

    def computes(self, request_id: RequestId, worker: WorkerRef, num_prompt_tokens: int) -> None:
        sent = self._sent.get(request_id)
        if sent is not None:
            self._end_prompt(sent)
            sent.prefill, sent.num_prompt_tokens = worker, num_prompt_tokens
            self._add(worker, sent.tenant, 0, 0, num_prompt_tokens)

    def gave(self, request_id: RequestId, num_tokens: int) -> None:
        """So many more output tokens came. With the first one it waits no more."""
        sent = self._sent.get(request_id)
        if sent is None:
            return
        sent.num_output_tokens += num_tokens
        if not sent.is_started:
            sent.is_started = True
            self._one_started(sent.tenant)
            self._end_prompt(sent)

    def end(self, request_id: RequestId) -> None:
        """Idempotent."""
        sent = self._sent.pop(request_id, None)
        if sent is not None:
            self._end_prompt(sent)
            there = self._by_worker[sent.decode]
            del there[request_id]
            if not there:
                del self._by_worker[sent.decode]
            self._add(sent.decode, sent.tenant, -1, -sent.num_slots, 0)
            if not sent.is_started:
                self._one_started(sent.tenant)

    def _end_prompt(self, sent: Sent) -> None:
        if sent.prefill is not None:
            self._add(sent.prefill, sent.tenant, 0, 0, -sent.num_prompt_tokens)
            sent.prefill = None

    def _one_started(self, tenant: str) -> None:
        left = self._num_unstarted[tenant] - 1
        if left:
            self._num_unstarted[tenant] = left
        else:
            del self._num_unstarted[tenant]

    def _add(self, worker: WorkerRef, tenant: str, num_requests: int, num_slots: int, num_prompt_tokens: int) -> None:
        self._num_changes += 1
        self._versions[worker] = self._num_changes
        by_tenant = self._held.setdefault(worker, {})
        held = by_tenant.setdefault(tenant, Held())
        held.num_requests += num_requests
        held.num_slots += num_slots
        held.num_prompt_tokens += num_prompt_tokens
        if held == Held():
            del by_tenant[tenant]
            if not by_tenant:
                del self._held[worker], self._versions[worker]
