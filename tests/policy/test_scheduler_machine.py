"""Two workers on tiny pools under every interleaving hypothesis finds: content, sums, ends and tokens are checked.

The model executes rows on a memory that knows what each cell holds. Red if a block is shared, evicted, reused or
released while its content is still needed; if a request is lost, ends twice or draws other tokens than alone.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from scheduler_model import CellMemory, CheckedModel, make_request, reference

from relevo.core.baton import Baton, SampleState
from relevo.core.events import TokenOutput
from relevo.core.handoff import KVPath, Link
from relevo.core.kv import Reservation
from relevo.core.plan import StepResult
from relevo.core.request import EngineRequest
from relevo.policy.worker.scheduler import ComputedPrefix, Scheduler, SchedulerConfig

MAX_LEN = 10
PROMPTS = [[1, 1, 2, 1, 2, 2, 1, 2], [1, 1, 2, 1, 1, 1, 2, 2], [2, 1, 1, 2, 2, 2, 1, 1]]  # prefixes meet often
ARRIVAL = {
    "prompt": st.builds(lambda tokens, size: tokens[:size], st.sampled_from(PROMPTS), st.integers(1, 8)),
    "max_tokens": st.integers(1, 6),
    "n": st.integers(1, 3),
    "priority": st.integers(-1, 1),
    "tenant": st.sampled_from(["", "", "b", "c"]),
    "salt": st.sampled_from([b"", b"", b"t"]),
}
CHAOS = [
    "_client_goes",
    "_client_goes_during_handoff",
    "_prefill_fails",
    "_fence",
    "_replay",
    "_step_with_abort",
    "_step_that_fails",
]
# Shrinking a failure takes minutes; the failing example is printed as it was found.
PHASES = [Phase.explicit, Phase.generate]


@dataclass
class Record:
    request: EngineRequest
    worker: str  # where it runs when it is not split
    samples: list[SampleState]
    phase: str = "local"  # local, reserving, granted, prefilling, decoding, done
    reservation: Reservation | None = None
    transfers: list[ComputedPrefix] = field(default_factory=list)  # computed on P, not yet on D
    is_prompt_sealed: bool = False
    num_sealed_tokens: int = 0
    is_writer_active: bool = False  # P computes for a room that D keeps in quarantine
    is_aborted: bool = False

    @property
    def request_id(self) -> str:
        return self.request.request_id

    @property
    def is_finished(self) -> bool:
        return all(sample.finish_reason is not None for sample in self.samples)


PATHS = {zero_copy: KVPath("fake", "D", Link.MEMORY if zero_copy else Link.BOX) for zero_copy in (True, False)}


class TwoWorkers(RuleBasedStateMachine):
    is_memory_shared = True
    caching = True

    @initialize(
        block_size=st.integers(2, 3),
        num_blocks=st.integers(5, 7),
        max_batched=st.integers(2, 9),
        max_prefill=st.integers(0, 5),
        max_running=st.integers(1, 5),
    )
    def start(self, block_size, num_blocks, max_batched, max_prefill, max_running):
        self.block_size = block_size
        self.now_ns = 0
        self.records: dict[str, Record] = {}
        shared = CellMemory(block_size)
        self.workers: dict[str, Scheduler] = {}
        self.models: dict[str, CheckedModel] = {}
        for index, name in enumerate("PD"):
            config = SchedulerConfig(
                worker_id=name,
                epoch=1,
                first_block_id=100 * index,
                num_blocks=num_blocks,
                block_size=block_size,
                max_batched_tokens=max_batched,
                max_prefill_tokens=max_prefill,
                max_running=max_running,
                max_model_len=min(MAX_LEN, num_blocks * block_size),
                enable_prefix_caching=self.caching,
            )
            self.workers[name] = Scheduler(config)
            memory = shared if self.is_memory_shared else CellMemory(block_size)
            self.models[name] = CheckedModel(memory, config.max_model_len)
        self.max_len = config.max_model_len

    # ---- arrivals ----

    def _new(self, prompt, **rest) -> Record:
        request = make_request(f"r{len(self.records)}", prompt, **rest)
        return Record(request, "D", [SampleState(index) for index in range(request.sampling.n)])

    @rule(worker=st.sampled_from("PD"), **ARRIVAL)
    def submit(self, worker, **arrival):
        record = self._new(**arrival)
        record.worker = worker
        if self.workers[worker].submit(record.request, (), self.now_ns) is None:
            self.records[record.request_id] = record

    @rule(**ARRIVAL)
    def reserve(self, **arrival):
        record = self._new(**arrival)
        record.phase = "reserving"
        if self.workers["D"].reserve(record.request, self.now_ns) is None:
            self.records[record.request_id] = record

    # ---- the way of a split request ----

    @rule()
    def take_grants(self):
        for reservation in self.workers["D"].take_grants(self.now_ns):
            record = self.records[reservation.request_id]
            assert record.phase == "reserving"
            assert len(reservation.block_ids) == -(-len(record.request.prompt_token_ids) // self.block_size)
            record.phase, record.reservation = "granted", reservation
            self._prefill(record)

    def _is_zero_copy(self, record):
        """Whether P computes its prompt straight into D's blocks."""
        return self.is_memory_shared

    def _prefill(self, record):
        rejected = self.workers["P"].prefill_into(
            record.request, record.reservation, self.now_ns, path=PATHS[self._is_zero_copy(record)]
        )
        assert rejected is None
        record.phase, record.is_writer_active = "prefilling", True

    @precondition(lambda self: any(r.transfers for r in self.records.values()))
    @rule(data=st.data())
    def deliver(self, data):
        record = data.draw(st.sampled_from([r for r in self.records.values() if r.transfers]))
        self._deliver(record)

    def _deliver(self, record):
        prefix = record.transfers.pop(0)
        if not self._is_zero_copy(record):
            targets = record.reservation.block_ids[prefix.first_index :]
            for source, target in zip(prefix.blocks, targets, strict=False):
                self.models["D"].memory.blocks[target] = list(self.models["P"].memory.block(source))
        if not record.is_aborted:
            self.workers["D"].seal(record.request_id, prefix.num_tokens)
            record.num_sealed_tokens = prefix.num_tokens
        if prefix.is_last:
            record.is_prompt_sealed = True
            self.workers["P"].finish_transfer(record.request_id)
            self._writer_gone(record)
            self._maybe_decode(record)

    def _writer_gone(self, record):
        record.is_writer_active, record.transfers = False, []
        if record.is_aborted:
            self.workers["D"].release(record.request_id)

    def _maybe_decode(self, record):
        if record.phase != "prefilling" or not record.samples[0].output_token_ids or record.is_aborted:
            return
        if record.is_finished:
            self.workers["P"].abort(record.request_id, False)
            self._writer_gone(record)
            self.workers["D"].abort(record.request_id, False)
            record.phase = "done"
        elif record.is_prompt_sealed:
            record.phase = "decoding"
            baton = Baton(
                request_id=record.request_id,
                samples=tuple(record.samples),
                num_sealed_tokens=len(record.request.prompt_token_ids),
            )
            assert self.workers["D"].start_decode(baton, self.now_ns) is None

    # ---- steps ----

    @rule(worker=st.sampled_from("PD"))
    def step(self, worker):
        self._step(worker)

    def _step(self, worker, between=None) -> bool:
        scheduler = self.workers[worker]
        self.now_ns += 1000
        plan = scheduler.plan(self.now_ns)
        if plan is None:
            return False
        assert plan.num_tokens <= scheduler.config.max_batched_tokens
        if between is not None:
            between(plan)
        self._commit(worker, plan, self.models[worker].execute(plan))
        return True

    def _commit(self, worker, plan, result):
        outcome = self.workers[worker].commit(plan, result, self.now_ns)
        for prefix in outcome.prefixes:
            record = self.records[prefix.request_id]
            assert not record.transfers or prefix.num_tokens >= record.transfers[-1].num_tokens
            record.transfers.append(prefix)
        for output in outcome.all_outputs:
            self._take(output)
        for output in outcome.all_outputs:
            self._maybe_decode(self.records[output.request_id])

    def _take(self, output: TokenOutput):
        record = self.records[output.request_id]
        if record.is_aborted:
            assert output.request_id in self.models["P"].excused or not self._is_zero_copy(record)
            return
        sample = record.samples[output.sample_index]
        assert sample.finish_reason is None, "a continuation ended twice"
        is_first = not any(other.output_token_ids for other in record.samples)
        assert (output.facts is not None) == is_first
        sample.output_token_ids += [token.token_id for token in output.tokens]
        expected, reason = reference(record.request, output.sample_index, self.max_len)
        assert sample.output_token_ids == expected[: len(sample.output_token_ids)]
        sample.finish_reason = output.finish_reason
        assert (output.finish_reason is not None) == (sample.output_token_ids == expected)
        assert output.finish_reason in (None, reason)
        if record.is_finished and record.phase != "prefilling":
            record.phase = "done"

    @rule(num_turns=st.integers(1, 4))
    def turns(self, num_turns):
        """Both workers go on; transfers are left to `deliver`."""
        for _ in range(num_turns):
            self.take_grants()
            self._step("D")
            self._step("P")

    @rule(kind=st.sampled_from(CHAOS), worker=st.sampled_from("PD"), data=st.data())
    def something_goes_wrong(self, kind, worker, data):
        getattr(self, kind)(worker, data)

    def _step_with_abort(self, worker, data):
        """An abort arrives while the step is being executed, and the room is wanted by others at once."""

        def between(plan):
            record = self.records[data.draw(st.sampled_from(self.workers[worker].planned_requests))]
            if not record.is_aborted and record.phase in ("local", "decoding"):
                self._abort(record)
                self.take_grants()
                self._step("P" if worker == "D" else "D")

        self._step(worker, between)

    def _step_that_fails(self, worker, data):
        """For one request: the others' rows are computed."""
        plan = self.workers[worker].plan(self.now_ns)
        if plan is None:
            return
        planned = self.workers[worker].planned_requests
        request_id = data.draw(st.sampled_from(planned))
        others = [place for place, other in enumerate(planned) if other != request_id]
        sampled = iter(self.models[worker].execute(plan.part(others)).sampled)
        whole = tuple(() if other == request_id else next(sampled) for other in planned)
        record = self.records[request_id]
        self.workers[worker].abort(request_id, writer_active=False)
        if record.phase == "prefilling" and not record.is_aborted:  # the gateway lets D finish alone
            self._prefill_locally(record)
        else:
            self._abort(record)
            if record.is_writer_active:
                self._writer_gone(record)
        self._commit(worker, plan, StepResult(plan.step_id, whole, 0.0))

    # ---- things going wrong ----

    def _alive(self, *phases):
        return [r for r in self.records.values() if r.phase in phases and not r.is_aborted]

    def _client_goes(self, worker, data):
        if alive := self._alive("local", "reserving", "granted", "prefilling", "decoding"):
            self._abort(data.draw(st.sampled_from(alive)))

    def _client_goes_during_handoff(self, worker, data):
        if alive := self._alive("prefilling"):
            self._abort(data.draw(st.sampled_from(alive)))

    def _abort(self, record):
        record.is_aborted = True
        self.models["P"].excused.add(record.request_id)
        worker = record.worker if record.phase == "local" else "D"
        for _ in range(2):
            self.workers[worker].abort(record.request_id, record.is_writer_active)
        if not record.is_writer_active:
            record.phase = "done"

    @precondition(lambda self: any(r.is_aborted and r.is_writer_active for r in self.records.values()))
    @rule(data=st.data())
    def writer_lets_go(self, data):
        record = data.draw(st.sampled_from([r for r in self.records.values() if r.is_aborted and r.is_writer_active]))
        assert record.request_id not in self.workers["D"].reservations
        self.workers["P"].abort(record.request_id, False)
        self._writer_gone(record)
        record.phase = "done"
        assert record.request_id not in self.workers["D"].reservations.orphans

    def _prefill_fails(self, worker, data):
        if alive := self._alive("prefilling"):
            record = data.draw(st.sampled_from(alive))
            self.workers["P"].abort(record.request_id, False)
            self._prefill_locally(record)

    def _prefill_locally(self, record):
        record.is_writer_active, record.transfers = False, []
        assert self.workers["D"].submit_reserved(record.request_id, tuple(record.samples), self.now_ns) is None
        record.phase, record.worker = "local", "D"

    def _fence(self, worker, data):
        for request_id in [each for each, entry in self.workers["P"].requests.items() if entry.is_remote_prefill]:
            record = self.records[request_id]
            self.workers["P"].abort(request_id, writer_active=False)
            if record.is_aborted:
                self._writer_gone(record)
                record.phase = "done"
            else:
                self._prefill_locally(record)

    def _replay(self, worker, data):
        """The worker is lost to the gateway: prompt and emitted tokens continue on the other one."""
        if not self._alive("local", "decoding"):
            return
        record = data.draw(st.sampled_from(self._alive("local", "decoding")))
        old = record.worker if record.phase == "local" else "D"
        self.workers[old].abort(record.request_id, False)
        record.phase, record.worker = "local", "P" if old == "D" else "D"
        samples = tuple(record.samples)
        assert self.workers[record.worker].submit(record.request, samples, self.now_ns) is None

    @rule(worker=st.sampled_from("PD"), max_prefill=st.integers(0, 4), max_running=st.integers(1, 4))
    def set_role(self, worker, max_prefill, max_running):
        self.workers[worker].set_role(max_prefill, max_running)

    # ---- always ----

    @invariant()
    def sums_hold(self):
        for scheduler in getattr(self, "workers", {}).values():
            load = scheduler.load()
            parts = (load.num_free_blocks, load.num_reusable_blocks, load.num_held_blocks, load.num_quarantined_blocks)
            assert min(parts) >= 0 and sum(parts) == load.num_total_blocks
            refs = [scheduler.pool.num_refs(scheduler.pool.first_block_id + i) for i in range(load.num_total_blocks)]
            assert sum(1 for count in refs if count) == load.num_held_blocks
            assert load.num_waiting_prefill_tokens >= 0

    @invariant()
    def what_a_writer_may_still_touch_is_held_by_no_request(self):
        for record in getattr(self, "records", {}).values():
            if record.is_aborted and record.is_writer_active:
                num_done = max(record.num_sealed_tokens, record.reservation.num_hit_tokens)
                first = num_done // self.block_size
                if num_done < len(record.request.prompt_token_ids):
                    for block_id in record.reservation.block_ids[first:]:
                        assert self.workers["D"].pool.num_refs(block_id) == 0

    def teardown(self):
        if not hasattr(self, "workers"):
            return
        for _ in range(3000):
            busy = self._drive()
            if not busy:
                break
        assert all(record.phase == "done" for record in self.records.values()), self.records
        for scheduler in self.workers.values():
            load = scheduler.load()
            assert load.num_free_blocks + load.num_reusable_blocks == load.num_total_blocks
            assert (load.num_running, load.num_waiting, load.num_reserved) == (0, 0, 0)
            assert (load.num_waiting_prefill_tokens, load.num_decode_kv_tokens) == (0, 0)
            assert not scheduler.has_work()

    def _drive(self) -> bool:
        """One turn of a driver that trusts `has_work`: a lost wake-up leaves requests behind."""
        busy = False
        for record in list(self.records.values()):
            while record.transfers:
                busy = True
                self._deliver(record)
            if record.is_aborted and record.is_writer_active:
                busy = True
                self.workers["P"].abort(record.request_id, False)
                self._writer_gone(record)
                record.phase = "done"
            elif record.is_aborted:
                record.phase = "done"
        for name, scheduler in self.workers.items():
            if scheduler.has_work():
                busy = True
                self.take_grants() if name == "D" else scheduler.take_grants(self.now_ns)
                self._step(name)
        return busy


class Copying(TwoWorkers):
    is_memory_shared = False


class Mixed(TwoWorkers):
    """Prompts for a worker of the same memory and for others compute side by side."""

    def _is_zero_copy(self, record):
        return int(record.request_id[1:]) % 2 == 0


class Uncached(TwoWorkers):
    caching = False


@pytest.mark.parametrize("machine", [TwoWorkers, Copying, Mixed, Uncached])
def test_two_workers_under_pressure(machine):
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=90,
            stateful_step_count=40,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            phases=PHASES,
        ),
    )


@pytest.mark.parametrize("machine", [TwoWorkers, Copying])
def test_what_a_writer_sealed_goes_to_others_while_it_still_writes_the_rest(machine):
    """Red when blocks that are sealed are written once more: their receiver has let go of them."""
    story = machine()
    story.start(block_size=2, num_blocks=5, max_batched=4, max_prefill=4, max_running=4)
    story.reserve(prompt=[1, 1, 2, 1, 1], max_tokens=4, n=1, priority=0, tenant="", salt=b"")
    story.take_grants()
    story.step("P")
    story.step("P")
    written = story.records["r0"]
    assert [prefix.num_tokens for prefix in written.transfers] == [4, 5]
    story._deliver(written)
    story._abort(written)
    story.submit(prompt=[2, 1, 1, 2, 2, 2, 1], max_tokens=3, n=1, priority=0, tenant="", salt=b"t", worker="D")
    story.step("D")
    story.step("D")
    assert any(story.workers["D"].pool.num_refs(block_id) for block_id in written.reservation.block_ids[:2])
    story._deliver(written)
    story.teardown()
