"""What every backend of `Ops` computes of states and gates, against plain numpy."""

from __future__ import annotations

import numpy as np
import pytest
from test_ops_contract import BACKENDS, BLOCK_SIZE, HEAD_SIZE, KV_HEADS, Body, close, host, values

from plain_states import PlainRule
from relevo.core.errors import UnsupportedModel
from relevo.core.kv import DTYPE_BYTES, KVGroup, KVLayout
from relevo.core.model import GatedDelta
from relevo.core.plan import ScheduledRow
from relevo.core.request import EngineRequest, SamplingParams
from relevo.engine.inputs import StepInputs, pack_rows
from relevo.engine.ops.native.ops import NativeOps
from relevo.engine.ops.protocol import DeltaRule, Ops

SIZES = GatedDelta(layers=(2, 3), num_key_heads=2, num_value_heads=4, key_size=4, value_size=5, kernel_size=3)
NUM_LAYERS, NUM_BLOCKS, VOCAB = 4, 16, 11
Row = tuple[list[int], int, list[int]]  # token ids, start, blocks of the state


@pytest.fixture(params=BACKENDS)
def ops(request: pytest.FixtureRequest) -> Ops:
    return BACKENDS[request.param]()


class Served:
    """A cache of noise, and what one body computes over it."""

    def __init__(self, ops: Ops, body: Body, width: int) -> None:
        states = KVGroup.state(SIZES.layers, SIZES.state_bytes(DTYPE_BYTES[ops.dtype]))
        layout = KVLayout("m", ops.dtype, BLOCK_SIZE, (KVGroup.full((0, 1), KV_HEADS, HEAD_SIZE), states))
        memory = memoryview(bytearray(b"\xff" * (NUM_BLOCKS * layout.bytes_per_block)))
        self.kv = ops.kv_cache(layout, NUM_BLOCKS, memory if ops.kv_in_host_memory else None)
        identity = ops.weight([host(np.eye(width, dtype=np.float32))])
        self.program = ops.program(lambda each: each.logits(body(each), identity), None, range(NUM_LAYERS))

    def step(self, *rows: Row) -> np.ndarray:
        inputs = packed(*rows)
        return self.program.run(inputs, self.kv, range(inputs.num_tokens)).values.copy()


def packed(*rows: Row) -> StepInputs:
    asked = EngineRequest(request_id="r", prompt_token_ids=(0,), sampling=SamplingParams(max_tokens=1, seed=0))
    blocks = [10, 11, 12]  # of tokens: no layer here writes any
    scheduled = [ScheduledRow(asked, ids, start, blocks, more_block_ids=(states,)) for ids, start, states in rows]
    return pack_rows(scheduled, BLOCK_SIZE, num_state_groups=1)


def passing(ops: Ops, rule: PlainRule, table: np.ndarray, gates: np.ndarray, layer: int = 3) -> Body:
    weight = {
        name: ops.weight([host(array)], is_exact=name != "convolution")
        for name, array in (
            ("convolution", rule.convolution[:, None]),
            ("decay", -np.exp(rule.decay)),
            ("decay_bias", rule.decay_bias),
        )
    }
    x, scores = ops.weight([host(table)]), ops.weight([host(gates)])
    of = DeltaRule(SIZES, SIZES.num_key_heads, 0, **weight)
    return lambda each: each.gated_delta(each.embed(x), each.embed(scores), layer, of)


def test_rows_go_on_from_their_states(ops: Ops) -> None:
    """Whole, in chunks, and one token beside others; blocks have held others before."""
    rule, table, gates = PlainRule.random(SIZES), values(VOCAB, SIZES.width), values(VOCAB, 8, seed=1)
    served = Served(ops, passing(ops, rule, table, gates), SIZES.num_values)
    tokens, other = [3, 0, 7, 7, 10, 2, 5, 1, 9], [4, 4, 8, 6]
    expected, of_other = (rule.values(table[each], gates[each]) for each in (tokens, other))
    close(ops, served.step((tokens, 0, [1, 2])), expected)
    first = served.step((other[:2], 0, [2, 1]), (tokens[:4], 0, [7, 5]))
    close(ops, first, np.concatenate((of_other[:2], expected[:4])))
    second = served.step((tokens[4:5], 4, [7, 5]), (other[2:], 2, [2, 1]))
    close(ops, second, np.concatenate((expected[4:5], of_other[2:])))
    close(ops, served.step((tokens[5:], 5, [7, 5])), expected[5:])


def test_a_copied_block_has_the_state(ops: Ops) -> None:
    rule, table, gates = PlainRule.random(SIZES), values(VOCAB, SIZES.width), values(VOCAB, 8, seed=1)
    served = Served(ops, passing(ops, rule, table, gates), SIZES.num_values)
    tokens = [3, 0, 7, 7, 10, 2]
    expected = rule.values(table[tokens], gates[tokens])
    served.step((tokens[:4], 0, [1, 2]))
    ops.copy_blocks(served.kv, [(1, 8), (2, 9)])
    served.step((tokens[4:], 4, [1, 2]))
    close(ops, served.step((tokens[4:], 4, [8, 9])), expected[4:])


def test_layers_have_states_of_their_own(ops: Ops) -> None:
    rule, table, gates = PlainRule.random(SIZES), values(VOCAB, SIZES.width), values(VOCAB, 8, seed=1)
    one, other = (passing(ops, rule, table, gates, layer) for layer in SIZES.layers)
    served, tokens = Served(ops, lambda each: each.add(one(each), other(each)), SIZES.num_values), [3, 0, 7, 7, 10]
    parts = served.step((tokens[:3], 0, [1, 2])), served.step((tokens[3:], 3, [1, 2]))
    close(ops, np.concatenate(parts), 2 * rule.values(table[tokens], gates[tokens]))


def test_gates_and_gated_norms(ops: Ops) -> None:
    table, scores, gain = values(VOCAB, 12), 3 * values(VOCAB, 12, seed=1), 1 + values(4, seed=2)
    x, y, single = (ops.weight([host(each)]) for each in (table, scores, scores[:, :1]))
    weight, tokens = ops.weight([host(gain)]), [3, 0, 7]

    def computed(body: Body) -> np.ndarray:
        return Served(ops, body, 12).step((tokens, 0, [1, 2]))

    of, sigmoid = table[tokens], 1 / (1 + np.exp(-scores[tokens]))
    close(ops, computed(lambda each: each.gate(each.embed(x), each.embed(y))), of * sigmoid)
    close(ops, computed(lambda each: each.gate(each.embed(x), each.embed(single))), of * sigmoid[:, :1])
    heads = of.reshape(3, 3, 4)
    normed = (heads / np.sqrt((heads**2).mean(-1, keepdims=True) + 1e-3) * gain).reshape(3, 12)
    expected = normed * scores[tokens] * sigmoid
    close(ops, computed(lambda each: each.gated_norm(each.embed(x), weight, each.embed(y), 1e-3)), expected)


def native_ops() -> NativeOps:
    return NativeOps("float32", (0,))


def test_what_a_cache_does_not_have_is_refused() -> None:
    ops, rule = native_ops(), PlainRule.random(SIZES)
    table, gates = values(VOCAB, SIZES.width), values(VOCAB, 8, seed=1)
    served = Served(ops, passing(ops, rule, table, gates, layer=1), SIZES.num_values)
    with pytest.raises(ValueError, match="no state of layer 1"):
        served.step(([1], 0, [1, 2]))
    served = Served(ops, passing(ops, rule, table, gates), SIZES.num_values)
    with pytest.raises(ValueError, match="1 blocks, which are too few"):
        served.step(([1], 0, [1]))
    with pytest.raises(ValueError, match="block 99 is outside the cache"):
        served.step(([1], 0, [1, 99]))
    without = KVLayout("m", "float32", BLOCK_SIZE, (KVGroup.full(range(NUM_LAYERS), KV_HEADS, HEAD_SIZE),))
    memory = memoryview(bytearray(NUM_BLOCKS * without.bytes_per_block))
    served.kv = ops.kv_cache(without, NUM_BLOCKS, memory)
    with pytest.raises(ValueError, match="each group of states"):
        served.step(([1], 0, [1, 2]))


def test_states_beside_integers_are_refused() -> None:
    states = KVGroup.state(SIZES.layers, SIZES.state_bytes(1))
    layout = KVLayout("m", "int8", 16, (KVGroup.full((0, 1), KV_HEADS, HEAD_SIZE), states))
    with pytest.raises(UnsupportedModel, match="not of int8"):
        native_ops().kv_cache(layout, 1, memoryview(bytearray(layout.bytes_per_block)))


def test_shapes_that_do_not_fit_are_refused() -> None:
    ops, rule = native_ops(), PlainRule.random(SIZES)
    with pytest.raises(UnsupportedModel, match="takes 36 columns and 8 gates, not 35 and 8"):
        Served(ops, passing(ops, rule, values(VOCAB, 35), values(VOCAB, 8)), SIZES.num_values)
    x, y = ops.weight([host(values(VOCAB, 6))]), ops.weight([host(values(VOCAB, 4))])
    with pytest.raises(UnsupportedModel, match="6 columns cannot be gated by 4 scores"):
        Served(ops, lambda each: each.gate(each.embed(x), each.embed(y)), 6)
    gain = ops.weight([host(values(4))])
    with pytest.raises(UnsupportedModel, match="a norm of 4 cannot take heads of 6 columns"):
        Served(ops, lambda each: each.gated_norm(each.embed(x), gain, each.embed(x), 1e-5), 6)
