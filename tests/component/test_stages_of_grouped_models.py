"""Stages of published models whose layers keep different things: red when the fullest holds more than it has to."""

from __future__ import annotations

from math import prod
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from test_backend_selection import plan

from published_configs import DEEPSEEK_V3, GEMMA_3_27B, GPT_OSS_20B
from relevo.build.model import kv_layout
from relevo.build.stages import stage_layers
from relevo.engine.loaders.model_files import ModelFiles, StoredTensor
from relevo.engine.models.families import config_from_hf
from relevo.engine.models.slice_places import shapes_of

GIB, SIZE = 2**30, 16


def stages(model: dict[str, Any], num_stages: int, kv_gib: int, length: int) -> list[range]:
    """Of bfloat16 weights."""
    config = config_from_hf(model, "config.json")
    stored = tuple(
        StoredTensor(
            name=name, path=Path(), offset=0, num_bytes=2 * prod(shape), shape=shape, stored_as="BF16", decode=_unread
        )
        for name, shape in shapes_of(config).items()
    )
    files = ModelFiles(name="m", source="safetensors", path=Path(), config=config, stored=stored)
    layout = kv_layout(config, "hash", "bfloat16", SIZE)
    worker = msgspec.structs.replace(
        plan(topology="unified", max_num_batched_tokens=512).workers[0],
        num_blocks=kv_gib * GIB // layout.bytes_per_block,
        pipeline_parallel_size=num_stages,
        max_model_len=length,
    )
    return stage_layers(files, worker, layout)


def _unread(data: np.ndarray, dequantised_as: str) -> Any:
    raise AssertionError("stages are cut before weights are read")


@pytest.mark.parametrize(
    ("model", "num_stages", "kv_gib", "length", "num_layers"),
    [
        (GEMMA_3_27B, 4, 1, 1024, [14, 17, 17, 14]),  # weights decide: the first and the last have the tied matrix
        (GEMMA_3_27B, 4, 400, 1024, [15, 16, 16, 15]),  # as long as the window: all layers keep the same
        (GEMMA_3_27B, 4, 400, 131072, [17, 15, 16, 14]),  # each sixth layer keeps all: two, three, three and two
        (GPT_OSS_20B, 4, 400, 131072, [6, 6, 6, 6]),
        (GPT_OSS_20B, 3, 400, 131072, [8, 8, 8]),
        (DEEPSEEK_V3, 4, 1, 1024, [17, 15, 15, 14]),  # the first three have no experts
        (DEEPSEEK_V3, 4, 4000, 131072, [16, 15, 15, 15]),  # latents are alike in all layers
    ],
)
def test_the_fullest_stage_is_small(
    model: dict[str, Any], num_stages: int, kv_gib: int, length: int, num_layers: list[int]
) -> None:
    assert [len(stage) for stage in stages(model, num_stages, kv_gib, length)] == num_layers
