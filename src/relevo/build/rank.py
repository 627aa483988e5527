"""Composition root of a rank process: a worker's child that computes some of its layers, or a share of them."""

from __future__ import annotations

import gc
import signal
from collections.abc import Callable
from functools import partial

from relevo.build.backend import make_ops
from relevo.build.configs import RankConfig
from relevo.build.cores import compute_here, compute_on
from relevo.build.model import kv_layout, load_model
from relevo.build.rank_links import join_ranks
from relevo.core.errors import StartError
from relevo.engine.loaders.resolve import load_model_files
from relevo.engine.ranks.collectives import RankLost
from relevo.engine.ranks.rank_cores import RankCores, cores_of_rank
from relevo.engine.ranks.rank_group import RankGroup
from relevo.engine.ranks.shared_memory import RankEnds
from relevo.engine.ranks.stage_rank import StageRank
from relevo.kv.arena import Arena
from relevo.telemetry.log import configure
from relevo.wire.status import Status


def run_rank(config: RankConfig, report: Callable[[Status], None]) -> None:
    """Load its layers, compute until its worker ends. Raises StartError."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a service manager tells all processes; the worker says when
    worker = config.worker
    place, size = config.rank % worker.group_size, worker.group_size
    compute_here(cores_of_rank(worker.cores, place, size))
    configure(worker.log_level, f"{worker.worker_id} rank {config.rank}")
    ranks = join_ranks(worker, config.rank, RankEnds(config.memory_fd, config.socket_fds))
    files = load_model_files(worker.model, revision=worker.revision, download_dir=worker.download_dir)
    layout = kv_layout(files.config, files.model_hash, worker.kv_cache_dtype, worker.block_size)
    if layout.model_hash != config.model_hash:
        raise StartError(f"{worker.model} was changed while it was loaded; start again")
    arena = Arena.attach(worker.arena_fd, layout, worker.num_arena_blocks)
    group = RankGroup(ranks, size)
    ops = make_ops(worker, cores_of_rank(worker.cores, place, size), group if size > 1 else None)
    model = load_model(worker, files, ops, stage=range(*config.layers), rank=place)

    cores = RankCores(worker.cores, config.rank, size, worker.num_ranks, partial(compute_on, ops))
    rank = StageRank(model, ops.kv_cache(layout, arena.num_blocks, arena.buffer), group, cores)
    report(Status(kind="ready"))
    gc.freeze()
    gc.enable()
    try:
        rank.run()
    except RankLost:
        return  # the worker's own end says why
    finally:
        gc.unfreeze()
        ranks.close()
