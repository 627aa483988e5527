"""Composition root of a worker process: names the concrete classes of one worker together."""

from __future__ import annotations

import gc
import logging
import os
import signal
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from relevo.build.clock import MonotonicClock
from relevo.build.configs import WorkerConfig
from relevo.build.cores import compute_here, compute_on
from relevo.build.machine_limits import limits_at_start
from relevo.build.model import kv_layout, load_model
from relevo.build.model_work import model_work, operand
from relevo.build.placed_experts import placement_line
from relevo.build.stages import stage_layers
from relevo.build.start_phases import StartPhases
from relevo.build.vocabulary import grammar_vocabulary
from relevo.core.errors import SettingsError
from relevo.core.events import ExpertLoads, StepCosts, WorkerLimits
from relevo.core.ids import WorkerId, WorkerRef
from relevo.core.kv import KVLayout
from relevo.core.ports import ModelRunner
from relevo.engine.grammars import Grammars
from relevo.engine.hello import WorkerIdentity
from relevo.engine.loop import EngineLoop
from relevo.engine.ranks.rank_cores import RankCores, cores_of_rank
from relevo.kv.arena import Arena
from relevo.kv.door import KVDoor
from relevo.kv.transport_set import TransportSet
from relevo.kv.transports.registry import TRANSPORTS, OwnEnd
from relevo.policy.cluster.epochs import worker_epoch
from relevo.policy.perf.model_work import ModelWork
from relevo.policy.perf.step_costs import StepCostModel
from relevo.policy.worker.chunking import MAX_CHUNK_WASTE, least_tokens, token_budget
from relevo.policy.worker.scheduler import Scheduler, SchedulerConfig
from relevo.policy.worker.table_rules import table_rules
from relevo.telemetry.log import configure
from relevo.wire.child_process import answer_pulses
from relevo.wire.server import WireServer
from relevo.wire.status import Status

if TYPE_CHECKING:
    from relevo.build.rank_processes import RankProcesses
    from relevo.engine.models.spec import Model
    from relevo.engine.runner import LocalRunner

log = logging.getLogger("relevo.engine")

_CALIBRATION = ((1, 1), (1, 256), (8, 8))  # (tokens, context) of steps that every start measures
_LONG_CHUNKS = ((32, 256), (16, 256))  # the first that takes no longer than _LONG_CHUNK_S, or the last
_LONG_CHUNK_S = 0.1  # arbitrary

READING = "reading and packing weights"  # tensor by tensor, each packed before the next one is read

Report = Callable[[Status], None]


def run_worker(config: WorkerConfig, report: Report) -> None:
    """Load, listen, serve until drained. Raises StartError when the model cannot be loaded."""
    compute_here(own_cores(config, config.cores))
    configure(config.log_level, config.worker_id)
    phases = StartPhases()
    built = build_fake(config) if config.model == "fake" else build_model(config, report, phases)
    runner, costs, grammars = built.runner, built.costs, built.grammars
    server = WireServer()
    transports = _transports(config, built.arena, server.wake)
    loop = EngineLoop(
        identity=WorkerIdentity(
            worker_id=WorkerId(config.worker_id),
            epoch=epoch_of(config),
            pid=os.getpid(),
            role=config.role,
            model_name=config.model,
            limits=built.limits,
            cores=tuple(config.cores),
            num_ranks=config.num_ranks,
        ),
        scheduler=Scheduler(scheduler_config(config, runner.layout, costs.costs, runner.vocab_size)),
        runner=runner,
        transports=transports,
        links=server,
        costs=costs,
        clock=MonotonicClock(),
        drain_timeout_s=config.drain_timeout_s,
        compute_on=built.compute_on,
        grammars=grammars,
        work=built.work,
        expert_loads=built.expert_loads,
    )
    costs.computes_on(len(config.cores))
    server.on_connect = loop.hello
    server.listen(config.address)
    if config.life_fd >= 0:
        server.watch(config.life_fd, answer_pulses(config.life_fd, lambda: report(Status(kind="alive"))))
    report(Status(kind="ready", worker_id=config.worker_id))
    phases.done("listening")
    log.info("%s", phases)
    gc.freeze()
    gc.enable()
    signal.signal(signal.SIGTERM, lambda *_: loop.drain())
    if built.ranks is not None:
        built.ranks.watch(server)
    try:
        loop.run()
    finally:
        gc.unfreeze()  # extensions look at the end whether everything of theirs is gone
        grammars.close()
        server.close()
        transports.close()
        if built.ranks is not None:
            built.ranks.close()


class Built(NamedTuple):
    """What of a worker depends on its model."""

    runner: ModelRunner
    arena: Arena
    costs: StepCostModel
    grammars: Grammars
    compute_on: Callable[[Sequence[int]], bool]
    work: ModelWork
    limits: WorkerLimits
    expert_loads: Callable[[], ExpertLoads] | None = None  # None: the model has no experts
    ranks: RankProcesses | None = None  # None: this process computes all layers


def build_fake(config: WorkerConfig) -> Built:
    """The engine without a model: deterministic tokens from the KV content, no torch."""
    from relevo.engine.fake_model import FAKE_MODEL
    from relevo.engine.fake_runner import FakeRunner
    from relevo.engine.fake_script import unpacked
    from relevo.engine.fake_work import fake_work
    from relevo.engine.grammar_masks import GrammarMasks

    layout = kv_layout(FAKE_MODEL, "fake", "uint64", config.block_size)
    arena = _arena(config, layout)
    costs = StepCosts(
        base_s=config.fake_base_s, per_token_s=config.fake_per_token_s, per_kv_token_s=config.fake_per_kv_token_s
    )
    measured = StepCostModel()
    for num_tokens, num_kv_tokens in (*_CALIBRATION, _LONG_CHUNKS[0]):
        measured.observe(num_tokens, num_kv_tokens, costs.step_s(num_tokens, num_kv_tokens))
    grammars = _grammars(config, FAKE_MODEL.vocab_size)
    runner = FakeRunner(
        arena,
        costs=costs,
        vocab_size=FAKE_MODEL.vocab_size,
        max_model_len=config.max_model_len,
        script=unpacked(config.script) if config.script else None,
        grammar_masks=GrammarMasks(grammars, FAKE_MODEL.vocab_size),
    )
    return Built(runner, arena, measured, grammars, lambda cores: False, *fake_work(costs))


def build_model(config: WorkerConfig, report: Report, phases: StartPhases | None = None) -> Built:
    """The real engine. Warm: lazy initialisation is done, step costs are measured."""
    phases = phases or StartPhases()
    from relevo.build.backend import make_ops
    from relevo.engine.grammar_masks import GrammarMasks
    from relevo.engine.loaders.resolve import load_model_files
    from relevo.engine.runner import LocalRunner
    from relevo.engine.sampler import Sampler

    def progress(num_bytes_done: int, num_bytes_total: int) -> None:
        report(Status(kind="progress", message=READING, num_done=num_bytes_done, num_total=num_bytes_total))

    report(Status(kind="progress", message="opening the model"))
    files = load_model_files(config.model, revision=config.revision, download_dir=config.download_dir)
    arena = _arena(config, kv_layout(files.config, files.model_hash, config.kv_cache_dtype, config.block_size))
    phases.done("engine imports, model file's head, arena")
    ranks = None
    if config.num_ranks > 1:
        from relevo.build.rank_processes import RankProcesses  # a worker of one process has none to start

        stages = stage_layers(files, config, arena.layout)
        of_ranks = msgspec.structs.replace(config, arena_fd=arena.fd)
        ranks = RankProcesses.start(of_ranks, stages, files.model_hash)
        if (placed := placement_line(config)) is not None:
            log.info("%s", placed)
        phases.done("starting ranks")
    grammars = _grammars(config, files.config.vocab_size)
    sums = ranks.group if ranks is not None and config.group_size > 1 else None
    ops = make_ops(config, own_cores(config, config.cores), sums)
    phases.done("backend")
    stage = ranks.own_layers if ranks is not None else None
    model: Model = load_model(config, files, ops, progress, stage, config.group_size - 1)
    phases.done("weights")
    log.info("weights loaded: %s", files.load_report)
    take_cores: Callable[[Sequence[int]], bool] = partial(compute_on, ops)
    if ranks is not None:
        ranks.wait_until_ready(report)
        cores = RankCores(config.cores, config.num_ranks - 1, config.group_size, config.num_ranks, take_cores)
        model = ranked = ranks.model(model, cores)
        take_cores = ranked.use_cores
        phases.done("waiting for ranks")
    masks = GrammarMasks(grammars, files.config.vocab_size, len(own_cores(config, config.cores)))
    sampler = Sampler(files.config.vocab_size, model.ops.row_math)
    runner = LocalRunner(model, arena, sampler, _own_block_ids(config), masks)
    report(Status(kind="progress", message="warming up"))
    runner.warm_up()
    report(Status(kind="progress", message="measuring steps"))
    costs = _measured_costs(runner)
    model.expert_counts.clear()  # of the steps that no request asked for
    phases.done("warm-up and step costs")
    work = model_work(files, config, arena.layout)
    limits = limits_at_start(config, work, operand(files, config))
    phases.done("limits of its cores")

    counts = model.expert_counts
    expert_loads = counts.loads if counts.layers else None
    return Built(runner, arena, costs, grammars, take_cores, work, limits, expert_loads, ranks)


def _measured_costs(runner: LocalRunner) -> StepCostModel:
    """A chunk costs at most in proportion to a shorter one, so that tells how long a long one would take here."""
    measured = runner.measure(_CALIBRATION)
    num_tokens, _, step_s = measured[-1]
    chunk = next((each for each in _LONG_CHUNKS if each[0] / num_tokens * step_s <= _LONG_CHUNK_S), _LONG_CHUNKS[-1])
    costs = StepCostModel()
    for sample in (*measured, *runner.measure([chunk])):
        costs.observe(*sample)
    return costs


def own_cores(config: WorkerConfig, cores: Sequence[int]) -> Sequence[int]:
    """Of this process, the last rank: others of its stage compute at the same time."""
    return cores_of_rank(cores, config.group_size - 1, config.group_size)


def _grammars(config: WorkerConfig, vocab_size: int) -> Grammars:
    return Grammars(partial(grammar_vocabulary, config.model, config.revision, config.download_dir, vocab_size))


def _own_block_ids(config: WorkerConfig) -> range:
    return range(config.first_block_id, config.first_block_id + config.num_blocks)


def _arena(config: WorkerConfig, layout: KVLayout) -> Arena:
    """Closed to writers: the warm-up writes into this worker's blocks, and a prefill worker that still computes there
    for an earlier incarnation has to find its right ended before it tells what it read."""
    if config.arena_fd >= 0:
        os.set_inheritable(config.arena_fd, False)  # ours, and of no process that we may start
        arena = Arena.attach(config.arena_fd, layout, config.num_arena_blocks)
        arena.close_to_writers(_own_block_ids(config))
        return arena
    if config.num_ranks > 1:  # its ranks map it too
        return Arena.create(layout, config.num_arena_blocks, shared=True)
    return Arena.create(layout, config.num_arena_blocks, shared=False)


def _transports(config: WorkerConfig, arena: Arena, wake: Callable[[], None]) -> TransportSet:
    worker = WorkerRef(WorkerId(config.worker_id), epoch_of(config))
    secret, door = bytes.fromhex(config.kv_secret), _door(config)
    own = OwnEnd(worker=worker, arena=arena, secret=secret, on_wake=wake, door=door)
    transports = [TRANSPORTS[name].open(own) for name in config.transports]
    return TransportSet(transports, arena.identity, config.box_id or None)


def epoch_of(config: WorkerConfig) -> int:
    """Of this process, within the epoch of its node, if that has one by now."""
    return worker_epoch(config.node_epoch, config.epoch) if config.node_epoch else config.epoch


def scheduler_config(config: WorkerConfig, layout: KVLayout, costs: StepCosts, vocab_size: int) -> SchedulerConfig:
    """Budgets cut to the measured costs. Raises SettingsError when a step of one token outlasts the drain lease."""
    budget = config.max_num_batched_tokens
    if config.max_step_s > 0.0:
        budget = token_budget(costs, config.max_step_s, 2 * config.max_num_seqs, budget)
    if costs.step_s(budget, budget) > config.drain_lease_s:
        budget = _budget_within_lease(costs, config.drain_lease_s, budget)
    max_prefill_tokens = min(_max_prefill_tokens(config, costs), budget)
    log.info(
        "step budget %d tokens, of prompts beside decodes %d: %.2f ms per token, %.1f ms besides",
        budget,
        max_prefill_tokens,
        costs.per_token_s * 1e3,
        costs.base_s * 1e3,
    )
    return SchedulerConfig(
        worker_id=WorkerId(config.worker_id),
        epoch=epoch_of(config),
        first_block_id=config.first_block_id,
        num_blocks=config.num_blocks,
        num_arena_blocks=config.num_arena_blocks,
        block_size=config.block_size,
        max_batched_tokens=budget,
        max_prefill_tokens=max_prefill_tokens,
        max_running=config.max_num_seqs,
        max_model_len=config.max_model_len,
        vocab_size=vocab_size,
        enable_prefix_caching=config.enable_prefix_caching,
        tenant_weights=config.tenant_weights,
        itl_target_s=config.itl_target_s,
        more_groups=table_rules(layout),
    )


def _max_prefill_tokens(config: WorkerConfig, costs: StepCosts) -> int:
    """Beside decodes. Without anything asked for, no more than keeps prompts nearly as fast as they can be; with a
    target between tokens it is the planner of steps that cuts them."""
    if config.max_prefill_tokens is not None:
        return config.max_prefill_tokens
    if config.max_step_s == 0.0 or config.itl_target_s > 0.0:
        return config.max_num_batched_tokens
    return least_tokens(costs, MAX_CHUNK_WASTE)


def _budget_within_lease(costs: StepCosts, drain_lease_s: float, budget: int) -> int:
    """A worker that is slow today serves in smaller steps: it is ended if it lets go of a request no sooner than the
    lease."""
    smaller = token_budget(costs, drain_lease_s / 2, 1, budget)
    smaller_s = costs.step_s(smaller, smaller)
    if smaller_s > drain_lease_s:
        raise SettingsError(
            f"a step of {smaller} tokens takes about {smaller_s:.1f} s here, longer than --drain-lease-s "
            f"{drain_lease_s:g}; raise that to {2 * smaller_s:.0f} or choose a smaller model"
        )
    log.warning(
        "step budget %d instead of %d tokens: %d would take %.1f s here, longer than --drain-lease-s %g",
        smaller,
        budget,
        budget,
        costs.step_s(budget, budget),
        drain_lease_s,
    )
    return smaller


def _door(config: WorkerConfig) -> KVDoor | None:
    """None: it hands over inside its box only, and imports no TLS. Raises StartError."""
    if not config.node_folder:
        return None
    from relevo.build.kv_door import kv_door

    return kv_door(config)
