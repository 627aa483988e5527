"""One scheduler on a checked memory, stepped by hand."""

from __future__ import annotations

from scheduler_model import CellMemory, CheckedModel

from relevo.core.baton import PrefillFacts
from relevo.core.handoff import KVPath, Link
from relevo.core.plan import StepPlan
from relevo.core.request import FinishReason
from relevo.policy.worker.scheduler import ComputedPrefix, Scheduler, SchedulerConfig, StepOutcome

STEP_NS = 1_000_000_000


class Driver:
    """Blocks of 2 tokens unless told otherwise; one second passes per step."""

    def __init__(self, *, memory: CellMemory | None = None, **changes: object) -> None:
        config = {
            "worker_id": "w",
            "epoch": 1,
            "first_block_id": 0,
            "num_blocks": 8,
            "block_size": 2,
            "max_batched_tokens": 16,
            "max_prefill_tokens": 16,
            "max_running": 8,
            "max_model_len": 100,
        }
        self.scheduler = Scheduler(SchedulerConfig(**(config | changes)))
        settings = self.scheduler.config
        longest = min(settings.max_model_len, settings.num_pool_tokens + 1)
        self.model = CheckedModel(memory or CellMemory(settings.block_size), longest)
        self.now_ns = 0
        self.tokens: dict[tuple[str, int], list[int]] = {}
        self.reasons: dict[tuple[str, int], FinishReason] = {}
        self.facts: dict[str, PrefillFacts] = {}
        self.prefixes: list[ComputedPrefix] = []

    def submit(self, request, samples=()):
        return self.scheduler.submit(request, tuple(samples), self.now_ns)

    def submit_reserved(self, request, samples=()):
        return self.scheduler.submit_reserved(request.request_id, tuple(samples), self.now_ns)

    def prefill_into(self, request, reservation, zero_copy=True, **found):
        path = KVPath("fake", "D", Link.MEMORY if zero_copy else Link.BOX)
        return self.scheduler.prefill_into(request, reservation, 0, path=path, **found)

    def reserve(self, request):
        return self.scheduler.reserve(request, self.now_ns)

    def granted(self) -> list[str]:
        return [reservation.request_id for reservation in self.scheduler.take_grants(self.now_ns)]

    def plan(self) -> StepPlan | None:
        self.now_ns += STEP_NS
        return self.scheduler.plan(self.now_ns)

    def commit(self, plan: StepPlan) -> StepOutcome:
        result = self.model.execute(plan)
        self.now_ns += STEP_NS
        outcome = self.scheduler.commit(plan, result, self.now_ns)
        for output in outcome.all_outputs:
            key = (output.request_id, output.sample_index)
            self.tokens.setdefault(key, []).extend(token.token_id for token in output.tokens)
            if output.finish_reason is not None:
                self.reasons[key] = output.finish_reason
            if output.facts is not None:
                assert output.request_id not in self.facts
                self.facts[output.request_id] = output.facts
        self.prefixes += outcome.prefixes
        return outcome

    def step(self) -> dict[str, int] | None:
        """One step; tokens computed per request, None if there was nothing to do."""
        plan = self.plan()
        if plan is None:
            return None
        computed: dict[str, int] = {}
        for request_id, num_tokens in zip(self.scheduler.planned_requests, plan.lengths, strict=True):
            computed[request_id] = computed.get(request_id, 0) + num_tokens
        self.commit(plan)
        return computed

    def drain(self) -> None:
        while self.scheduler.has_work():
            self.scheduler.take_grants(self.now_ns)
            self.step()

    def is_clean(self) -> bool:
        load = self.scheduler.load()
        return load.num_free_blocks + load.num_reusable_blocks == load.num_total_blocks
