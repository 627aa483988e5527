"""Records a trace as a list of the program's operations, and gives its values places in few buffers.

Owns the fusions (values), the checks of shapes, and the reuse of buffers. What is not implemented is refused when a
model is loaded, in a sentence, never computed wrongly. It does not compute.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt

from relevo.core.errors import UnsupportedModel
from relevo.core.model import Activation, ExpertPlaces, QueryGrowth
from relevo.engine.ops.bfloat16 import bfloat16_bits, bfloat16_values
from relevo.engine.ops.native.values import (
    Activated,
    Buffer,
    Columns,
    Heads,
    Normed,
    Product,
    RecordedEnd,
    Source,
    Value,
)
from relevo.engine.ops.protocol import PLAIN_ATTENTION, SILU, AttentionRule, DeltaRule, ExpertBiases, Router
from relevo.engine.ops.ranks import RankSums


@dataclass(frozen=True, slots=True)
class Instruction:
    """A call of the native program's method `name`; columns become (slot, offset)."""

    name: str
    columns: dict[str, Columns]
    arguments: dict[str, Any]
    reads: tuple[str, ...]  # of the columns; written ones may be read too
    needs_place: bool = False  # a token's position or blocks matter: it cannot run on chosen rows only


class Recorder:
    """`Operations` of one trace."""

    def __init__(self, program: Any, activation_dtype: str, ranks: RankSums | None = None) -> None:
        """`activation_dtype`: as `NativeOps` has it. `ranks`: that sums are made with."""
        self._ranks = ranks
        self._activation_dtype = activation_dtype
        self.has_bfloats = False  # whether a matrix of bfloat16 was recorded, the output layer apart
        self._program = program  # the native one; knows angles at once, operations when all are recorded
        self._instructions: list[Instruction] = []
        self._end: RecordedEnd | None = None

    # ---- operations --------------------------------------------------------------------------------------------------

    def embed(self, weight: Any, scale: float = 1.0) -> Columns:
        out = _new(weight.shape[1])
        arguments = {"table": weight} | ({} if scale == 1.0 else {"scale": _rounded(scale, weight.formats)})
        self._add(Instruction("embed", {"out": out}, arguments, (), needs_place=True))
        return out

    def hidden_in(self, width: int) -> Columns:
        out = _new(width)
        self._add(Instruction("take_hidden", {"out": out}, {"width": width}, (), needs_place=True))
        return out

    def linear(self, x: Value, weight: Any, bias: Any) -> Product:
        source = self._source(x)
        if weight.shape[1] != x.width or (bias is not None and bias.size != weight.shape[0]):
            raise UnsupportedModel(f"a matrix of shape {list(weight.shape)} cannot take {x.width} inputs with its bias")
        return Product(source, self._as_multiplied(weight), bias)

    def rms_norm(self, x: Value, weight: Any, eps: float) -> Normed | Heads:
        if isinstance(x, Heads) and weight.size == x.size:
            if x.gain is not None or x.angles is not None:
                x = Heads(self._columns(x), x.num_heads, x.size)
            return Heads(x.x, x.num_heads, x.size, weight, eps)
        if weight.size != x.width:
            raise UnsupportedModel(f"a norm of {weight.size} cannot take {x.width} columns")
        if isinstance(x, Heads):  # of all heads of a token, in place
            columns = self._heads(x)
            arguments = {"num_groups": 1, "gain": weight, "eps": eps}
            self._add(Instruction("rms_norm", {"in_": columns, "out": columns}, arguments, ("in_",)))
            columns.spend()
            return Heads(Columns(columns.buffer, columns.offset, columns.width), x.num_heads, x.size)
        return Normed(self._columns(x), weight, eps)

    def add(self, x: Value, y: Value) -> Columns:
        if x.width != y.width:
            raise UnsupportedModel(f"{x.width} columns cannot be added to {y.width}")
        target = self._columns(x)
        if isinstance(y, Product) and y.done is None:
            self._multiply(y, target, accumulate=True)
        else:
            return self._added(target, self._columns(y))
        return _overwritten(target)

    def _added(self, x: Columns, y: Columns) -> Columns:
        self._add(Instruction("add_into", {"x": x, "y": y}, {"width": x.width}, ("x", "y")))
        return _overwritten(x)

    def reduce(self, parts: Sequence[Value]) -> Columns:
        """Added one by one, never while a product is made: so sums within a rank have the bits of those between two."""
        sums = [self._columns(part) for part in parts]
        while len(sums) > 1:
            sums = [self._added(left, right) for left, right in zip(sums[::2], sums[1::2], strict=True)]
        total = sums[0]
        if self._ranks is None:
            return total
        arguments = {"width": total.width, "call": self._ranks.all_reduce}
        self._add(Instruction("exchange", {"x": total}, arguments, ("x",)))
        return _overwritten(total)

    def activate(self, x: Value, activation: Activation = SILU) -> Activated:
        if x.width % 2 != 0:
            raise UnsupportedModel(f"{x.width} columns are not a gate and as many values")
        return Activated(self._columns(x), activation)

    def experts(
        self,
        x: Value,
        router: Router,
        gate_up: Sequence[Any],
        down: Sequence[Any],
        biases: ExpertBiases | None = None,
        activation: Activation = SILU,
    ) -> tuple[Columns, ...]:
        places, (num_experts, width) = router.places, router.weight.shape
        if (places is None and num_experts != len(gate_up)) or width != x.width:
            raise UnsupportedModel(
                f"a router of shape {list(router.weight.shape)} cannot choose among {len(gate_up)} experts of {x.width}"
            )
        num_slices = 1 if places is None else places.num_slices
        columns, out, scores = self._columns(x), _new(num_slices * x.width), _new(num_experts)
        routing = router.routing
        arguments = {
            "router": router.weight,
            "bias": router.bias,
            "gate_up": [self._as_multiplied(matrix) for matrix in gate_up],
            "down": [self._as_multiplied(matrix) for matrix in down],
            "num_active": routing.num_active,
            "is_sigmoid": routing.scoring == "sigmoid",
            "normalises": routing.normalises,
            "scale": routing.scale,
            "num_groups": routing.num_groups,
            "num_used_groups": routing.num_used_groups,
            "logit_bias": router.logit_bias,
            "gate_up_bias": list(biases.gate_up) if biases else [],
            "down_bias": list(biases.down) if biases else [],
            "weighs_inputs": routing.weighs_inputs,
            **_activation(activation),
            "group_sum_of": routing.group_sum_of,
            **({} if places is None else self._placed(places)),
            **({} if router.counts is None else {"counts": router.counts}),
            **({} if router.rank_counts is None else {"rank_counts": router.rank_counts}),
        }
        self._add(Instruction("experts", {"in_": columns, "scores": scores, "out": out}, arguments, ("in_",)))
        return self.split(out, num_slices * [x.width])

    def _placed(self, places: ExpertPlaces) -> dict[str, Any]:
        arguments = {"ranks": [list(each) for each in places.ranks], "rank": places.rank}
        arguments |= {"num_ranks": places.num_ranks, "num_slices": places.num_slices}
        return arguments if self._ranks is None else {**arguments, "move": self._ranks.exchange_rows}

    def _as_multiplied(self, matrix: Any) -> Any:
        self.has_bfloats = self.has_bfloats or "bfloat16" in matrix.formats
        if self._activation_dtype == "int8":
            return matrix
        return matrix.wide().rounded() if self._activation_dtype == "bfloat16" else matrix.wide()

    def split_heads(self, x: Value, num_heads: Sequence[int], head_size: int) -> tuple[Heads, ...]:
        if x.width != sum(num_heads) * head_size:
            raise UnsupportedModel(f"{x.width} columns are not {sum(num_heads)} heads of {head_size}")
        columns = self._columns(x)
        columns.spend()
        heads, offset = [], columns.offset
        for count in num_heads:
            heads.append(Heads(Columns(columns.buffer, offset, count * head_size), count, head_size))
            offset += count * head_size
        return tuple(heads)

    def split(self, x: Value, widths: Sequence[int]) -> tuple[Columns, ...]:
        if x.width != sum(widths):
            raise UnsupportedModel(f"{x.width} columns are not {' and '.join(map(str, widths))}")
        columns = self._columns(x)
        columns.spend()
        ends = accumulate(widths)
        return tuple(
            Columns(columns.buffer, columns.offset + end - width, width)
            for width, end in zip(widths, ends, strict=True)
        )

    def linear_heads(self, x: Value, weights: Sequence[Any]) -> Columns:
        rows, k = weights[0].shape
        if x.width != len(weights) * k:
            raise UnsupportedModel(f"{x.width} columns are not {len(weights)} heads of {k}")
        columns, out = self._columns(x), _new(len(weights) * rows)
        self._add(Instruction("multiply_heads", {"in_": columns, "out": out}, {"matrices": list(weights)}, ("in_",)))
        return out

    def latent_attention(
        self, q: Value, q_rotated: Heads, latent: Value, key: Heads, layer: int, scale: float
    ) -> Columns:
        if q_rotated.gain is not None or key.gain is not None or q_rotated.angles != key.angles:
            q_rotated, key = (Heads(self._columns(heads), heads.num_heads, heads.size) for heads in (q_rotated, key))
        if isinstance(latent, Normed) and latent.done is None:
            kept, gain, eps = latent.x, latent.gain, latent.eps  # normed where it lies, and read nowhere else
        else:
            kept, gain, eps = self._columns(latent), None, 0.0
        out = _new(q.width)
        columns = {"q": self._columns(q), "rotated": q_rotated.x, "latent": kept, "key": key.x, "out": out}
        arguments = {
            "num_heads": q_rotated.num_heads,
            "latent_size": latent.width,
            "key_size": key.size,
            "layer": layer,
            "gain": gain,
            "eps": eps,
            "angles": -1 if key.angles is None else key.angles,
            "scale": scale,
        }
        reads = ("q", "rotated", "latent", "key")
        self._add(Instruction("attend_latents", columns, arguments, reads, needs_place=True))
        for spent in (q_rotated.x, kept, key.x):
            spent.spend()
        return out

    def rope_angles(self, inv_freq: npt.NDArray[np.float32], scale: float, growth: QueryGrowth | None = None) -> int:
        frequencies = np.ascontiguousarray(inv_freq, dtype=np.float32)
        how = (growth.factor, growth.tokens) if growth else ()
        number: int = self._program.add_angles(frequencies, scale, *how)
        return number

    def rope(self, x: Heads, angles: int) -> Heads:
        if x.angles is not None:
            x = Heads(self._columns(x), x.num_heads, x.size)
        return Heads(x.x, x.num_heads, x.size, x.gain, x.eps, angles)

    def attention(self, q: Heads, k: Heads, v: Heads, layer: int, rule: AttentionRule = PLAIN_ATTENTION) -> Columns:
        if v.gain is not None or v.angles is not None or (q.angles, q.eps) != (k.angles, k.eps):
            q, k, v = (Heads(self._columns(heads), heads.num_heads, heads.size) for heads in (q, k, v))
        if k.x.buffer is not v.x.buffer:
            raise UnsupportedModel("keys and values that are not parts of one product are not implemented")
        if not q.size == k.size == v.size or k.num_heads != v.num_heads:
            raise UnsupportedModel("queries, keys and values with heads of different size or number do not attend")
        out = _new(q.width)
        columns = {"q": q.x, "k": k.x, "v": v.x, "out": out}
        arguments = {
            "num_heads": q.num_heads,
            "num_kv_heads": k.num_heads,
            "head_size": q.size,
            "layer": layer,
            "q_gain": q.gain,
            "k_gain": k.gain,
            "eps": q.eps,
            "angles": -1 if q.angles is None else q.angles,
            "window": rule.reach.window,
            "chunk": rule.reach.chunk,
            "scale": rule.scale or 0.0,
            "sinks": rule.sinks,
            **({} if rule.first_kv_head is None else {"first_kv_head": rule.first_kv_head}),
        }
        self._add(Instruction("attend", columns, arguments, ("q", "k", "v"), needs_place=True))
        for heads in (q, k, v):
            heads.x.spend()
        return out

    def gate(self, x: Value, scores: Value) -> Columns:
        return self._gated(x, scores, {"has_one_score": scores.width == 1 < x.width})

    def gated_norm(self, x: Value, weight: Any, gate: Value, eps: float) -> Columns:
        if x.width % weight.size:
            raise UnsupportedModel(f"a norm of {weight.size} cannot take heads of {x.width} columns")
        return self._gated(x, gate, {"is_silu": True, "gain": weight, "eps": eps})

    def _gated(self, x: Value, scores: Value, how: dict[str, Any]) -> Columns:
        if scores.width not in (1, x.width):
            raise UnsupportedModel(f"{x.width} columns cannot be gated by {scores.width} scores")
        columns = {"in_": self._columns(x), "scores": self._columns(scores), "out": _new(x.width)}
        self._add(Instruction("gate", columns, {"width": x.width, **how}, ("in_", "scores")))
        return columns["out"]

    def gated_delta(self, x: Value, gates: Value, layer: int, rule: DeltaRule) -> Columns:
        sizes = rule.sizes
        if (x.width, gates.width) != (sizes.width, 2 * sizes.num_value_heads):
            raise UnsupportedModel(
                f"a state of {sizes.num_value_heads} value heads takes {sizes.width} columns and "
                f"{2 * sizes.num_value_heads} gates, not {x.width} and {gates.width}"
            )
        columns = {"in_": self._columns(x), "gates": self._columns(gates), "out": _new(sizes.num_values)}
        arguments = {
            "layer": layer,
            "num_key_heads": sizes.num_key_heads,
            "num_value_heads": sizes.num_value_heads,
            "key_size": sizes.key_size,
            "value_size": sizes.value_size,
            "kernel_size": sizes.kernel_size,
            "num_state_heads": rule.num_state_heads,
            "first_head": rule.first_head,
            "is_tiled": sizes.files.is_tiled,
            "convolution": rule.convolution,
            "decay": rule.decay,
            "decay_bias": rule.decay_bias,
        }
        self._add(Instruction("pass_states", columns, arguments, ("in_", "gates"), needs_place=True))
        return columns["out"]

    def logits(self, x: Value, weight: Any) -> RecordedEnd:
        source = self._source(x)
        if weight.shape[1] != x.width:
            raise UnsupportedModel(f"an output layer of shape {list(weight.shape)} cannot take {x.width} inputs")
        arguments = {**source.arguments, "head": weight.wide()}
        self._add(Instruction("logits", {"in_": source.x}, arguments, ("in_",)))
        self._end = RecordedEnd(weight.shape[0])
        return self._end

    def hidden_out(self, x: Value) -> RecordedEnd:
        columns = self._columns(x)
        self._add(Instruction("give_hidden", {"in_": columns}, {"width": x.width}, ("in_",), needs_place=True))
        self._end = RecordedEnd(x.width)
        return self._end

    # ---- carrying out what waits -------------------------------------------------------------------------------------

    def _add(self, instruction: Instruction) -> None:
        if self._end is not None:
            raise UnsupportedModel("operations after the logits or the hidden states are not implemented")
        for name in instruction.reads:
            instruction.columns[name].require()
        self._instructions.append(instruction)

    def _source(self, x: Value) -> Source:
        if isinstance(x, Normed) and x.done is None:
            return Source("norm", x.x, x.gain, x.eps)
        if isinstance(x, Activated) and x.done is None:
            return Source(x.activation.kind, x.x, activation=x.activation)
        return Source("plain", self._columns(x))

    def _columns(self, x: Value) -> Columns:
        """Have the value in a buffer."""
        if isinstance(x, Columns):
            return x
        if isinstance(x, Heads):
            return self._heads(x)
        if x.done is None:
            out = _new(x.width)
            match x:
                case Product():
                    self._multiply(x, out, accumulate=False)
                case Normed():
                    arguments = {"num_groups": 1, "gain": x.gain, "eps": x.eps}
                    self._add(Instruction("rms_norm", {"in_": x.x, "out": out}, arguments, ("in_",)))
                case Activated():
                    arguments = {"width": x.width, **_activation(x.activation)}
                    self._add(Instruction("activate", {"in_": x.x, "out": out}, arguments, ("in_",)))
            x.done = out
        return x.done

    def _heads(self, heads: Heads) -> Columns:
        """Norm and rotate in place."""
        columns = heads.x
        if heads.gain is not None:
            arguments = {"num_groups": heads.num_heads, "gain": heads.gain, "eps": heads.eps}
            self._add(Instruction("rms_norm", {"in_": columns, "out": columns}, arguments, ("in_",)))
        if heads.angles is not None:
            sizes = {"num_heads": heads.num_heads, "head_size": heads.size, "angles": heads.angles}
            self._add(Instruction("rope", {"x": columns}, sizes, ("x",), needs_place=True))
        if heads.gain is None and heads.angles is None:
            return columns
        return _overwritten(columns)

    def _multiply(self, product: Product, out: Columns, accumulate: bool) -> None:
        source = product.source
        arguments = {
            **source.arguments,
            "matrix": product.matrix,
            "bias": product.bias,
            "accumulate": accumulate,
            "alpha": source.activation.alpha,
            "limit": source.activation.limit,
        }
        reads = ("in_", "out") if accumulate else ("in_",)
        self._add(Instruction("multiply", {"in_": source.x, "out": out}, arguments, reads))
        product.done = out

    # ---- the program -------------------------------------------------------------------------------------------------

    def finish(self, result: object) -> None:
        """Give every value its place and hand the list to the native program."""
        if result is not self._end or self._end is None:
            raise UnsupportedModel("a trace must end with its logits or its hidden states")
        slot_widths, last_use = self._place_buffers()
        for width in slot_widths:
            self._program.add_buffer(width)
        chosen_from = 1 + max((i for i, op in enumerate(self._instructions) if op.needs_place), default=-1)
        try:
            for index, op in enumerate(self._instructions):
                if index == chosen_from:
                    self._program.compact(self._kept(chosen_from, last_use))
                places = {name: (columns.buffer.slot, columns.offset) for name, columns in op.columns.items()}
                getattr(self._program, op.name)(**places, **op.arguments)
        except ValueError as error:
            raise UnsupportedModel(f"this model cannot be computed: {error}") from error

    def _place_buffers(self) -> tuple[list[int], dict[Buffer, int]]:
        """Widths of the program's buffers, and the last instruction that uses each value's."""
        last_use = {c.buffer: index for index, op in enumerate(self._instructions) for c in op.columns.values()}
        widths: list[int] = []
        free: list[int] = []
        for index, op in enumerate(self._instructions):
            used = {columns.buffer: None for columns in op.columns.values()}  # each once, in order
            for buffer in used:
                if buffer.slot < 0:
                    buffer.slot = _take_slot(buffer.width, widths, free)
            free.extend(buffer.slot for buffer in used if last_use[buffer] == index)
        return widths, last_use

    def _kept(self, chosen_from: int, last_use: dict[Buffer, int]) -> list[int]:
        """Slots whose rows are still needed by the instructions from `chosen_from` on."""
        before = {c.buffer for op in self._instructions[:chosen_from] for c in op.columns.values()}
        return sorted(buffer.slot for buffer in before if last_use[buffer] >= chosen_from)


def _activation(activation: Activation) -> dict[str, Any]:
    return {"activation": activation.kind, "alpha": activation.alpha, "limit": activation.limit}


def _rounded(scale: float, formats: Sequence[str]) -> float:
    """As the dtype of a matrix of floats rounds it."""
    if list(formats) == ["float16"]:
        return float(np.float16(scale))
    if list(formats) == ["bfloat16"]:
        return float(bfloat16_values(bfloat16_bits(np.array([scale], dtype=np.float32)))[0])
    return scale


def _overwritten(columns: Columns) -> Columns:
    """The same place with what has been written over it."""
    columns.spend()
    return Columns(columns.buffer, columns.offset, columns.width)


def _new(width: int) -> Columns:
    return Columns(Buffer(width), 0, width)


def _take_slot(width: int, widths: list[int], free: list[int]) -> int:
    """The tightest free slot that is wide enough, else the widest one made wider, else a new one."""
    wide_enough = [slot for slot in free if widths[slot] >= width]
    if not free:
        widths.append(width)
        return len(widths) - 1
    slot = min(wide_enough, key=lambda s: widths[s]) if wide_enough else max(free, key=lambda s: widths[s])
    widths[slot] = max(widths[slot], width)
    free.remove(slot)
    return slot
