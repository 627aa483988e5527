"""What a worker tells gateways about itself, its load and its counters: once per turn, to each of them.

Owns the counters, and which gateways have been told since something changed: one that gets outputs is told with these,
every other one by a report. Does not know requests, nor when a turn ends.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from relevo.core.events import ExpertLoads, StepCounters, TokenOutput, WorkerLoad, WorkerPort, refused_key
from relevo.core.ids import PeerId
from relevo.core.plan import StepPlan
from relevo.kv.transport_set import TransportSet
from relevo.policy.perf.model_work import ModelWork
from relevo.policy.perf.step_costs import StepCostModel
from relevo.policy.worker.core import WorkerCore
from relevo.policy.worker.step_outcome import StepOutcome
from relevo.wire import messages as wire
from relevo.wire.gateway_links import GatewayLinks

_EXPERTS_EVERY_STEPS = 256  # arbitrary: a large model has some ten thousand numbers


@dataclass(slots=True)
class LoadReports:
    core: WorkerCore
    costs: StepCostModel
    transports: TransportSet
    links: GatewayLinks
    growing_bytes_per_token: int  # of KV, in the layers that keep every token
    work: ModelWork | None = None  # None: what steps read and multiply is not counted
    expert_loads: Callable[[], ExpertLoads] | None = None  # None: the model has no experts
    num_steps: int = 0
    tail_bytes: int = 0  # that other workers received of windows, chunks and states
    num_prefill_tokens: int = 0
    num_generation_tokens: int = 0
    largest_step_tokens: int = 0
    busy_s: float = 0.0
    product_ops: float = 0.0
    read_bytes: float = 0.0
    _noted_refusals: tuple[int, Mapping[str, int]] = (0, MappingProxyType({}))
    _num_steps_at_experts: int = 0  # when these were last told
    _has_changed: bool = False
    _told: set[PeerId] = field(default_factory=set)  # since the last change

    def load(self) -> WorkerLoad:
        return self.core.scheduler.load(self.costs.costs)

    def counters(self) -> StepCounters:
        """With what the transports have refused in their own threads: also writes of senders that are dead by now."""
        core, scheduler = self.core, self.core.scheduler
        return StepCounters(
            num_steps=self.num_steps,
            num_prefill_tokens=self.num_prefill_tokens,
            num_generation_tokens=self.num_generation_tokens,
            num_preemptions=scheduler.num_preemptions,
            num_prefix_queries=scheduler.num_prefix_queries,
            num_prefix_hits=scheduler.num_prefix_hits,
            transferred_bytes=core.num_handed_tokens * self.growing_bytes_per_token + self.tail_bytes,
            transfer_s=core.transfer_s,
            num_refused_writes=core.num_withdrawn + self.transports.num_refused_writes,
            largest_step_tokens=self.largest_step_tokens,
            step_budget_tokens=scheduler.config.max_batched_tokens,
            prefill_budget_tokens=scheduler.config.max_prefill_tokens,
            num_request_faults=core.num_request_faults,
            num_refused_connections=self._refused_connections(),
            busy_s=self.busy_s,
            product_ops=self.product_ops,
            read_bytes=self.read_bytes,
        )

    def _refused_connections(self) -> dict[str, int]:
        kv, gateways = self.transports.num_refused_connections, self.links.num_refused_connections
        if not kv and not gateways:
            return {}
        return {
            **{refused_key(WorkerPort.KV, reason): count for reason, count in kv.items()},
            **{refused_key(WorkerPort.WIRE, reason): count for reason, count in gateways.items()},
        }

    def count_steps(self, num_steps: int, num_tokens: int, num_prefill_tokens: int, outcome: StepOutcome) -> None:
        """Steps of `num_tokens` tokens each, `num_prefill_tokens` of them of prompts, and what they brought."""
        self.num_steps += num_steps
        self.num_prefill_tokens += num_steps * num_prefill_tokens
        self.largest_step_tokens = max(self.largest_step_tokens, num_tokens)
        self.num_generation_tokens += sum([len(output.tokens) for output in outcome.all_outputs])

    def count_work(self, plan: StepPlan, step_s: float) -> None:
        """A step that was computed, and how long it took."""
        self.busy_s += step_s
        if self.work is not None:
            self.product_ops += self.work.plan_operations(plan)
            self.read_bytes += self.work.decode_bytes(plan.num_kv_tokens)

    def note_refusals(self) -> None:
        """What was refused since the last call, by threads of the transports or at the worker's doors, is a change."""
        refusals = self.transports.num_refused_writes, self._refused_connections()
        if refusals != self._noted_refusals:
            self._noted_refusals = refusals
            self.changed()

    def changed(self) -> None:
        """No gateway knows yet."""
        self._has_changed = True
        self._told.clear()

    def send_outputs(self, by_peer: Mapping[PeerId, Sequence[TokenOutput]]) -> None:
        """A step's outputs to the gateways whose requests they are of, and the load after the step with them."""
        load, counters = self.load(), self.counters()
        for peer, outputs in by_peer.items():
            self.links.send(peer, wire.StepOutputs(tuple(outputs), load, counters))
        self._has_changed = True
        self._told = set(by_peer)

    def publish(self) -> None:
        """To every gateway that has not been told: each routes by loads, also without a request here."""
        if self._has_changed:
            self._report([peer for peer in self.links.peer_ids if peer not in self._told])
        self._has_changed = False
        self._told.clear()
        if self.expert_loads is not None:
            self._tell_experts(self.expert_loads)

    def _tell_experts(self, loads: Callable[[], ExpertLoads]) -> None:
        num_new = self.num_steps - self._num_steps_at_experts
        if num_new >= _EXPERTS_EVERY_STEPS or (num_new and not self.core.num_requests):
            self._num_steps_at_experts = self.num_steps
            report = wire.ExpertReport(loads())
            for peer in self.links.peer_ids:
                self.links.send(peer, report)

    def _report(self, peers: Sequence[PeerId]) -> None:
        if peers:
            report = wire.LoadReport(self.load(), self.counters())
            for peer in peers:
                self.links.send(peer, report)
