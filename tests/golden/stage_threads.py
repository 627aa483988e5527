"""Ranks of a worker as threads of one process, over one cache, for the golden tests."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

import pytest
from tiny_decoders import make_ops

from relevo.core.kv import KVLayout
from relevo.engine.loaders.model_files import ModelFiles
from relevo.engine.models.families import spec_of
from relevo.engine.models.slices import share_of
from relevo.engine.models.spec import Model
from relevo.engine.ops.native.ops import NativeOps
from relevo.engine.ops.protocol import Ops
from relevo.engine.ranks.collectives import RankLost
from relevo.engine.ranks.pairwise import PairwiseCollectives
from relevo.engine.ranks.pieces import DEFAULT_RULE, PieceRule
from relevo.engine.ranks.rank_cores import RankCores
from relevo.engine.ranks.rank_group import RankGroup
from relevo.engine.ranks.ranked_model import RankedModel
from relevo.engine.ranks.stage_rank import StageRank
from relevo.policy.perf.stages import even_stages


def load(files: ModelFiles, ops: Ops, stage: range | None = None) -> Model:
    spec = spec_of(files.config)
    wanted = None if stage is None else {name for group in spec.weights(files.config, stage) for name in group}
    return spec.load(files.config, files.tensors(wanted=wanted), ops, files.config.max_position, stage=stage)


def load_share(files: ModelFiles, group: RankGroup, stage: range) -> Model:
    """On the native backend, of a model that is cut."""
    config, share = files.config, share_of(files.config, group.rank, group.size)
    ops = NativeOps("float32", cores=(0,), ranks=group if group.size > 1 else None)
    return spec_of(config).load(config, files.tensors(), ops, config.max_position, share, stage)


def rank_cores(rank: int, group_size: int, num_ranks: int, ops: Ops) -> RankCores:
    """Of a worker with a core for each rank, in name: threads of all ranks run where this process may."""
    return RankCores(range(num_ranks), rank, group_size, num_ranks, lambda cores: ops.use_cores([0] * len(cores)))


def lost(error: RankLost) -> NoReturn:
    raise error


@contextmanager
def pipeline(
    files: ModelFiles,
    num_stages: int,
    backend: str,
    memory: bytearray | memoryview,
    layout: KVLayout,
    group_size: int | None = None,
    piece_tokens: int | None = None,
) -> Iterator[RankedModel]:
    """Every rank but the last in a thread of its own, over one memory. `group_size`: ranks of a stage; None: one, of a
    model that is not cut. `piece_tokens`: at least so many in a piece of a step; None: as the rule says."""
    stages = even_stages([1.0] * files.config.num_layers, (0.0, 0.0), num_stages)
    size = group_size or 1
    groups = [RankGroup(each, size) for each in PairwiseCollectives.local(num_stages * size)]
    num_blocks, threads = len(memory) // layout.bytes_per_block, []

    def loaded(number: int) -> Model:
        if group_size is None:
            return load(files, make_ops(backend, layout.dtype), stages[number])
        return load_share(files, groups[number], stages[number // size])

    for number, group in enumerate(groups[:-1]):
        model = loaded(number)
        kv = model.ops.kv_cache(layout, num_blocks, memoryview(memory))
        rank = StageRank(model, kv, group, rank_cores(number, size, len(groups), model.ops))
        threads.append(threading.Thread(target=_run, args=(rank,), daemon=True))
        threads[-1].start()
    try:
        last = loaded(len(groups) - 1)
        cores = rank_cores(len(groups) - 1, size, len(groups), last.ops)
        pieces = PieceRule(piece_tokens, least=1) if piece_tokens else DEFAULT_RULE
        yield RankedModel(last, groups[-1], cores, lost, pieces)
    finally:
        for group in groups:
            group.collectives.close()
        for thread in threads:
            thread.join(30)
            assert not thread.is_alive(), "a rank outlives its worker"


def _run(rank: StageRank) -> None:
    with pytest.raises(RankLost):
        rank.run()
