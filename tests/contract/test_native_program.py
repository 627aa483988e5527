"""What the native program refuses, and what it promises about its memory."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest
import torch

from relevo.core.errors import UnsupportedModel
from relevo.core.kv import KVGroup, KVLayout
from relevo.core.plan import ScheduledRow
from relevo.core.request import EngineRequest, SamplingParams
from relevo.engine.inputs import StepInputs, pack_rows
from relevo.engine.ops.native.ops import NativeOps
from relevo.engine.ops.native.recorder import Recorder
from relevo.engine.ops.protocol import Buffer, HostTensor, Operations

WIDTH, VOCAB, BLOCK_SIZE, NUM_BLOCKS = 32, 19, 4, 12


@pytest.fixture(scope="module")
def ops() -> NativeOps:
    return NativeOps("float32", cores=(0, 1))


def tensor(*shape: int, seed: int = 0) -> HostTensor:
    return HostTensor(np.random.default_rng(seed).normal(size=shape).astype(np.float32), "float32")


def step(*lengths: int) -> StepInputs:
    asked = EngineRequest(request_id="r", prompt_token_ids=(0,), sampling=SamplingParams(max_tokens=1, seed=0))
    blocks = iter(range(NUM_BLOCKS))
    rows = [
        ScheduledRow(
            asked,
            [i % VOCAB for i in range(length)],
            0,
            [next(blocks) for _ in range(-(-length // BLOCK_SIZE))],
        )
        for length in lengths
    ]
    return pack_rows(rows, BLOCK_SIZE)


def cache(ops: NativeOps, num_layers: int = 1, head_size: int = 8) -> Any:
    layout = KVLayout("m", "float32", BLOCK_SIZE, (KVGroup.full(range(num_layers), 1, head_size),))
    return ops.kv_cache(layout, NUM_BLOCKS, None)


class Weights:
    def __init__(self, ops: NativeOps) -> None:
        self.table = ops.weight([tensor(VOCAB, WIDTH)])
        self.square = ops.weight([tensor(WIDTH, WIDTH, seed=1)])
        self.gain = ops.weight([tensor(WIDTH, seed=2)])
        self.wide = ops.weight([tensor(3 * 8, WIDTH, seed=3)])
        self.back = ops.weight([tensor(WIDTH, 8, seed=4)])


@pytest.fixture(scope="module")
def weights(ops: NativeOps) -> Weights:
    return Weights(ops)


def layers(weights: Weights, num_layers: int) -> Any:
    """A decoder's shape: attention and a product, both into the residual."""

    def trace(o: Operations) -> Buffer:
        x = o.embed(weights.table)
        for layer in range(num_layers):
            q, k, v = o.split_heads(o.linear(o.rms_norm(x, weights.gain, 1e-5), weights.wide, None), (1, 1, 1), 8)
            x = o.add(x, o.linear(o.attention(q, k, v, layer), weights.back, None))
            x = o.add(x, o.linear(o.rms_norm(x, weights.gain, 1e-5), weights.square, None))
        return o.logits(x, weights.table)

    return trace


@pytest.mark.parametrize(
    ("trace", "sentence"),
    [
        (lambda o, w: o.embed(w.table), "end with its logits"),
        (lambda o, w: o.logits(o.linear(o.embed(w.table), w.back, None), w.table), "cannot take 32 inputs"),
        (lambda o, w: o.logits(o.embed(w.table), w.back), "output layer"),
        (lambda o, w: o.add(o.embed(w.table), o.embed(w.back)), "cannot be added"),
        (lambda o, w: o.split_heads(o.embed(w.table), (3,), 8), "are not 3 heads of 8"),
        (lambda o, w: o.attention(*o.split_heads(o.embed(w.table), (2, 1, 1), 8)[:3], -1), "negative"),
        (lambda o, w: o.attention(*o.split_heads(o.embed(w.table), (4, 2, 2), 4), 0), "head size of 4"),
    ],
)
def test_what_cannot_be_computed_is_refused_in_a_sentence(
    ops: NativeOps, weights: Weights, trace: Any, sentence: str
) -> None:
    def finished(o: Operations) -> Buffer:
        out = trace(o, weights)
        if sentence in ("negative", "head size of 4"):
            return o.logits(o.linear(out, ops.weight([tensor(WIDTH, out.width)]), None), weights.table)
        return out

    with pytest.raises(UnsupportedModel, match=sentence):
        ops.program(finished, None, range(1))


def test_a_value_cannot_be_read_after_it_was_written_over(ops: NativeOps, weights: Weights) -> None:
    """Red if a norm that waits for its reader would see what an addition left behind."""

    def stale(o: Operations) -> Buffer:
        x = o.embed(weights.table)
        normed = o.rms_norm(x, weights.gain, 1e-5)
        x = o.add(x, o.linear(x, weights.square, None))
        return o.logits(normed, weights.table)

    with pytest.raises(UnsupportedModel, match="may overwrite"):
        ops.program(stale, None, range(1))


class Counting:
    """Stands for the native program: counts buffers, takes everything."""

    def __init__(self) -> None:
        self.widths: list[int] = []
        self.calls: list[str] = []

    def add_buffer(self, width: int) -> int:
        self.widths.append(width)
        return len(self.widths) - 1

    def __getattr__(self, name: str) -> Any:
        return lambda *_args, **_kwargs: self.calls.append(name)


def test_buffers_are_reused_and_operations_fused(weights: Weights) -> None:
    """As many buffers for thirty layers as for one; per layer three products and one attention, nothing between."""
    lists = []
    for num_layers in (1, 30):
        counting = Counting()
        recorder = Recorder(counting, "int16")
        recorder.finish(layers(weights, num_layers)(recorder))
        lists.append(counting)
    assert lists[0].widths == lists[1].widths
    layer = ["multiply", "attend", "multiply", "multiply"]
    assert lists[1].calls == ["embed", *layer * 29, *layer[:2], "compact", *layer[2:], "logits"]


def test_only_tokens_whose_logits_are_asked_for_are_finished(ops: NativeOps, weights: Weights) -> None:
    """The same logits, whichever tokens are left out after the last attention."""
    program, kv = ops.program(layers(weights, 2), None, range(2)), cache(ops, 2)
    inputs = step(9, 1, 5)
    whole = program.run(inputs, kv, range(15)).values.copy()
    for asked in ([14], [8, 9, 14], [0, 3], [9, 8], []):
        np.testing.assert_array_equal(program.run(inputs, kv, asked).values, whole[np.array(asked, dtype=int)])


def test_logits_outlive_their_program_and_a_larger_step(ops: NativeOps, weights: Weights) -> None:
    """Old arrays keep their memory. Red (under a sanitizer) if growing frees what numpy still shows."""
    program, kv = ops.program(layers(weights, 1), None, range(1)), cache(ops)
    small = program.run(step(1), kv, [0]).values
    program.run(step(40), kv, range(40))
    del program
    gc.collect()
    assert np.isfinite(small).all()


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"token_ids": [VOCAB, 0]}, "outside the vocabulary"),
        ({"token_ids": [-1, 0]}, "outside the vocabulary"),
        ({"block_tables": [[NUM_BLOCKS]], "block_of_token": [NUM_BLOCKS, NUM_BLOCKS]}, "outside the cache"),
        ({"positions": [1, 1]}, "not where"),
        ({"offset_of_token": [0, 3]}, "not where"),
        ({"context_lengths": [1]}, "context of 1"),
        ({"context_lengths": [99]}, "context of 99"),
        ({"row_first_token": [0, 1]}, "do not cover"),
        ({"logit_tokens": [2]}, "ascending"),
    ],
)
def test_steps_that_point_outside_are_refused(
    ops: NativeOps, weights: Weights, change: dict[str, Any], sentence: str
) -> None:
    """A scheduler's mistake must not become a write into another request's memory."""
    inputs = step(2)
    names = (
        "token_ids",
        "positions",
        "block_of_token",
        "offset_of_token",
        "row_first_token",
        "context_lengths",
        "block_tables",
    )
    arrays = {name: np.array(change.get(name, getattr(inputs, name)), dtype=np.int64) for name in names}
    arrays["logit_tokens"] = np.array(change.get("logit_tokens", [1]), dtype=np.int64)
    program = ops.program(layers(weights, 1), None, range(1)).native
    summaries = {"best": np.zeros(1, np.int64), "finite": np.zeros(1, np.bool_)}
    with pytest.raises(ValueError, match=sentence):
        program.run(cache(ops), **arrays, sliding_window=0, **summaries)


def test_a_cache_of_another_model_is_refused(ops: NativeOps, weights: Weights) -> None:
    program = ops.program(layers(weights, 2), None, range(2))
    for wrong in (cache(ops, 1), cache(ops, 2, 16)):
        with pytest.raises(ValueError, match="the model needs 2 of 1 of 8"):
            program.run(step(1), wrong, [0])


def test_profiling_counts_every_kind_of_operation(ops: NativeOps, weights: Weights) -> None:
    program = ops.program(layers(weights, 1), None, range(1))
    program.native.profiling = True
    program.run(step(5), cache(ops), [4])
    seconds = program.native.seconds_by_kind
    assert {kind for kind, spent in seconds.items() if spent > 0} == {
        "embed",
        "multiply",
        "attend",
        "compact",
        "logits",
    }


@pytest.mark.parametrize("stored", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("packed", ["auto", "float32", "float16", "bfloat16"])
def test_conversion_rounds_to_nearest(stored: str, packed: str) -> None:
    """Against numpy's and torch's own conversions, over all magnitudes a half can hold, and beyond."""
    values = np.random.default_rng(5).normal(size=(3, 4096)).astype(np.float32)
    values *= 2.0 ** np.random.default_rng(6).integers(-30, 15, size=values.shape).astype(np.float32)
    kinds = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
    held = torch.from_numpy(values).clamp(-60000, 60000).to(kinds[stored])
    expected = held.to(kinds[stored if packed == "auto" else packed]).float().numpy()
    array = held.view(torch.int16).numpy().view(np.uint16) if stored == "bfloat16" else held.numpy()
    ops = NativeOps(packed, cores=(0, 1))
    table = ops.weight([HostTensor(array, stored)])
    asked = EngineRequest(request_id="r", prompt_token_ids=(0,), sampling=SamplingParams(max_tokens=1, seed=0))
    inputs = pack_rows([ScheduledRow(asked, [0, 1, 2], 0, [0])], BLOCK_SIZE)
    for first in (0, 1000, 4094):
        rolled = np.zeros((2, 4096), dtype=np.float32)
        rolled[0, first] = rolled[1, first + 1] = 1.0
        probe = ops.weight([HostTensor(rolled, "float32")])
        out = (
            ops.program(lambda o, probe=probe: o.logits(o.embed(table), probe), None, range(1))
            .run(inputs, cache(ops), range(3))
            .values
        )
        np.testing.assert_array_equal(out, expected[:, first : first + 2])


def test_a_step_has_the_same_bits_after_the_team_has_changed() -> None:
    """Between two steps of one program, to more threads and to fewer. Red when memory per thread is not there for a
    thread that joined, or when the number of threads shows in a sum."""
    ops = NativeOps("float32", cores=(0,))
    weights = Weights(ops)
    program, inputs = ops.program(layers(weights, 2), None, range(2)), step(7, 1, 16)
    found = []
    for cores in ((0,), (0, 1, 0), (1,), (0, 1)):
        assert ops.use_cores(cores)
        found.append(program.run(inputs, cache(ops, 2), [0, 7, 23]).values.copy())
    for other in found[1:]:
        np.testing.assert_array_equal(other, found[0])


def test_a_matrix_of_two_formats_has_the_same_bits_on_any_number_of_threads() -> None:
    """Kernels take inputs in groups, of other sizes for floats than for integers. Red when a thread's share of the rows
    begins inside a group of either."""
    random = np.random.default_rng(8)
    blocks = random.integers(0, 256, (WIDTH // 2, 34), dtype=np.uint8)
    blocks[:, :2] = np.array([0.01], np.float16).view(np.uint8)
    halves = HostTensor(random.normal(size=(WIDTH // 2, WIDTH)).astype(np.float16), "float16")
    found = []
    for cores in ((0,), (0, 1), (0, 1, 0)):
        ops = NativeOps("auto", cores=cores)
        table, mixed = ops.weight([tensor(VOCAB, WIDTH)]), ops.weight([halves, HostTensor(blocks, "q8_0")])
        program = ops.program(
            lambda o, table=table, mixed=mixed: o.logits(o.linear(o.embed(table), mixed, None), table), None, range(1)
        )
        found.append(program.run(step(29), cache(ops), range(29)).values.copy())
    assert np.isfinite(found[0]).all()
    for other in found[1:]:
        np.testing.assert_array_equal(other, found[0])


def test_a_core_that_is_not_there_leaves_the_team_as_it_was() -> None:
    ops = NativeOps("float32", cores=(0, 1))
    with pytest.raises(ValueError, match="cannot be pinned"):
        ops.use_cores((0, 1023))
    assert ops.program(layers(Weights(ops), 1), None, range(1)).run(step(3), cache(ops), [2]).values.shape == (1, VOCAB)
