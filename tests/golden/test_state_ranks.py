"""Layers that keep states, shared out among ranks: logits and cache have the bits of one process.

Red when a rank takes another's state, or part of one, for its own, clears it, or forgets it between steps.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from stage_threads import pipeline
from test_states import FAMILIES, NUM_BLOCKS, Stateful, assert_same, saved
from tiny_decoders import BACKENDS, prompt

from relevo.engine.loaders.model_files import ModelFiles


def traffic(served: Stateful) -> list[np.ndarray]:
    """Chunks, single tokens beside another prompt, and a slot that is used again."""
    one, two = prompt(40), prompt(30, 1)
    return [
        served.in_parts(one[:20], [9, 11], 0),
        served.step(served.row(one[20:21], 20, 0), served.row(two[:17], 0, 1)),
        served.step(served.row(one[21:], 21, 0), served.row(two[17:18], 17, 1)),
        served.step(served.row(two, 0, 0), served.row(two[18:], 18, 1)),
    ]


def on_ranks(
    files: ModelFiles,
    backend: str,
    num_stages: int,
    group_size: int | None = None,
    dtype: str = "float32",
    piece_tokens: int | None = None,
) -> tuple[list[np.ndarray], bytearray]:
    served = Stateful(files, dtype, backend)
    with pipeline(files, num_stages, backend, served.memory, served.layout, group_size, piece_tokens) as model:
        served.kv = model.ops.kv_cache(served.layout, NUM_BLOCKS, memoryview(served.memory))
        served.decoder = model
        return traffic(served), served.memory


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("num_stages", [2, 3, 4])
def test_stages_have_the_bits_of_one_process(family: str, backend: str, num_stages: int, tmp_path: Path) -> None:
    """Of four layers: stages of layers with states only, too."""
    _, files = saved(family, tmp_path)
    alone = Stateful(files, backend=backend)
    expected = traffic(alone)
    found, memory = on_ranks(files, backend, num_stages)
    for ours, theirs in zip(found, expected, strict=True):
        if backend == "native":
            np.testing.assert_array_equal(ours, theirs)
        else:  # whose products differ by where in memory numbers lie
            assert_same(ours, theirs)
    assert memory == alone.memory or backend != "native"


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("family", FAMILIES)
def test_pieces_of_a_step_go_on_from_each_others_states(family: str, dtype: str, tmp_path: Path) -> None:
    """Red when a piece begins with zeros, or with what its row had before the step."""
    _, files = saved(family, tmp_path)
    alone = Stateful(files, dtype, "native")
    expected = traffic(alone)
    for num_stages, piece_tokens in ((2, 1), (2, 5), (3, 3)):
        found, memory = on_ranks(files, "native", num_stages, None, dtype, piece_tokens)
        for ours, theirs in zip(found, expected, strict=True):
            np.testing.assert_array_equal(ours, theirs)
        assert memory == alone.memory


HEADS = {"num_attention_heads": 8, "num_key_value_heads": 4, "linear_num_key_heads": 4, "linear_num_value_heads": 8}


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("family", FAMILIES)
def test_groups_have_the_bits_of_each_other_and_what_the_model_computes(
    family: str, dtype: str, tmp_path: Path
) -> None:
    """Red when a rank convolves another's queries, keys or values, or has its part of a state in another's place."""
    _, files = saved(family, tmp_path, **HEADS)
    alone = Stateful(files, dtype, "native")
    expected = traffic(alone)
    first, memory = on_ranks(files, "native", 1, 1, dtype)
    if dtype == "float32":  # what is rounded to 16 bits is now and then rounded to the next number
        for ours, theirs in zip(first, expected, strict=True):
            assert_same(ours, theirs)
    for num_stages, size in ((1, 2), (1, 4), (2, 2)):
        found, other = on_ranks(files, "native", num_stages, size, dtype)
        for ours, theirs in zip(found, first, strict=True):
            np.testing.assert_array_equal(ours, theirs)
        assert other == memory, (num_stages, size)
