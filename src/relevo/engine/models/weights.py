"""The weights of a decoder: which tensors it is made of, checked, cut and handed to a backend.

Owns which of them are stacked into one matrix (q, k, v; gate and up: one multiplication instead of three or two). Names
and shapes are `weight_plan`'s. It does not know files or quantisation.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from relevo.core.model import ModelConfig
from relevo.engine.models.delta_weights import DeltaWeights, delta_weights
from relevo.engine.models.latent_weights import LatentWeights, latent_weights, pack
from relevo.engine.models.slice_places import shapes_of
from relevo.engine.models.slice_tensors import SliceTensors
from relevo.engine.models.slices import Slice
from relevo.engine.models.weight_forms import as_computed
from relevo.engine.models.weight_plan import (
    Shapes,
    exact_names,
    expert_layers,
    expert_plan,
    layer_plan,
    top_plan,
    weight_groups,
)
from relevo.engine.models.weight_shapes import check_missing, check_shape
from relevo.engine.ops.protocol import Buffer, ExpertBiases, HostTensor, Ops

_ADDED_ONCE = frozenset({"output_bias", "down_bias"})  # to the sum of what slices come to


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertWeights:
    router: Buffer  # [experts, E] float32
    bias: Buffer | None  # [experts] float32, of the choice
    logit_bias: Buffer | None  # [experts] float32, of the scores
    biases: ExpertBiases | None
    gate_up: tuple[Buffer, ...]  # by expert that is here, [2I, E]
    down: tuple[Buffer, ...]  # [E, I]


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerWeights:
    """None: the model has no such weight."""

    input_norm: Buffer
    qkv: Buffer | None  # [(H + 2K) * D, E], with gates (2H + 2K); None: there are latents or a state
    qkv_bias: Buffer | None
    q_norm: Buffer | None  # [D]
    k_norm: Buffer | None  # [D]
    sinks: Buffer | None  # [H]
    output: Buffer  # [E, H * D]
    output_bias: Buffer | None
    attention_norm: Buffer | None  # of what attention gives
    mlp_norm: Buffer
    output_norm: Buffer | None  # of what the MLP gives
    gate_up: Buffer | None  # [2I, E], of the MLP that every token passes
    gate_up_bias: Buffer | None
    down: Buffer | None  # [E, I]
    down_bias: Buffer | None
    shared_gate: Buffer | None  # [1, E], of what that MLP gives
    experts: ExpertWeights | None
    latent: LatentWeights | None
    delta: DeltaWeights | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderWeights:
    """Of all layers or of a stage of them. None: another stage has it."""

    embedding: Buffer | None  # [V, E]
    layers: tuple[LayerWeights, ...]  # of the stage
    final_norm: Buffer | None
    head: Buffer | None  # [V, E]; the embedding itself when they are tied


def load_slices(
    config: ModelConfig, slices: Sequence[Slice], tensors: Iterable[tuple[str, HostTensor]], ops: Ops, stage: range
) -> tuple[DecoderWeights, ...]:
    """Of each slice; what is not cut they have together. `config`: of the whole model; `stage`: layers, of it.

    Consume `tensors` once, in any order. One that the model does not use is skipped: loaders refuse such names
    (`weight_plan.unasked`). Raises ModelFileError for a missing tensor or a wrong shape, UnsupportedModel for a cut
    inside a block.
    """
    gatherings, loaded = [_Gathering(config, each, ops, stage) for each in slices], set()
    asked = {name for gathering in gatherings for name in gathering.names}
    shapes = {name: shape for name, shape in shapes_of(config, stage).items() if name in asked}
    for name, tensor in tensors:
        if name not in shapes:
            continue
        check_shape(name, tensor.shape, shapes[name])
        loaded.add(name)
        for gathering in gatherings:
            if gathering is gatherings[0] or not gatherings[0].shares(name):
                gathering.take(name, tensor)
    check_missing(shapes, [name for name in shapes if name not in loaded])
    common = {name: weight for name, weight in gatherings[0].ready.items() if gatherings[0].shares(name)}
    each_ready = [common | own.ready for own in gatherings]
    return tuple(_decoder_weights(each, stage, ready) for each, ready in zip(slices, each_ready, strict=True))


def _decoder_weights(part: Slice, stage: range, ready: Mapping[str, Buffer]) -> DecoderWeights:
    top = {role: ready[next(iter(group))] for role, group in top_plan(part.config, stage).items()}
    return DecoderWeights(
        embedding=top.get("embedding"),
        layers=tuple(_layer(part, index, ready) for index in stage),
        final_norm=top.get("final_norm"),
        head=top.get("head", top.get("embedding")),
    )


def _layer(part: Slice, index: int, ready: Mapping[str, Buffer]) -> LayerWeights:
    config = part.config
    roles = {
        role: ready[next(iter(group))] if group and (part.adds_biases or role not in _ADDED_ONCE) else None
        for role, group in layer_plan(config, index).items()
    }
    return LayerWeights(
        **roles,
        experts=_experts(part, index, ready) if index in expert_layers(config) else None,
        latent=latent_weights(config, index, ready) if config.latent else None,
        delta=delta_weights(config, index, ready),
    )


def _experts(part: Slice, index: int, ready: Mapping[str, Buffer]) -> ExpertWeights:
    plan, experts = expert_plan(part.config, index), part.config.experts
    assert experts is not None, "the model has none"

    def of(groups: Iterable[Shapes]) -> tuple[Buffer, ...]:
        return tuple(ready[next(iter(group))] for group in groups)

    down_bias = of(plan.down_bias) if part.adds_biases or experts.places else ()
    return ExpertWeights(
        router=of([plan.router])[0],
        bias=of([plan.bias])[0] if plan.bias else None,
        logit_bias=of([plan.logit_bias])[0] if plan.logit_bias else None,
        biases=ExpertBiases(of(plan.gate_up_bias), down_bias) if plan.gate_up_bias else None,
        gate_up=of(plan.gate_up),
        down=of(plan.down),
    )


class _Gathering:
    """The weights of a slice, by the name of their first part. Parts wait only until their group is complete."""

    def __init__(self, config: ModelConfig, part: Slice, ops: Ops, stage: range) -> None:
        self.ready: dict[str, Buffer] = {}
        self._config, self._tensors, self._ops = part.config, SliceTensors(config, part), ops
        self._exact: Collection[str] = exact_names(part.config)
        self._group_of = {name: group for group in weight_groups(part.config, stage) for name in group}
        self._waiting: dict[str, HostTensor] = {}

    @property
    def names(self) -> Collection[str]:
        return self._group_of.keys()

    def shares(self, name: str) -> bool:
        """Whether all slices have the weight that this tensor is part of, as it is."""
        group = self._group_of.get(name, {})
        return bool(group) and not any(self._tensors.is_cut(part) for part in group)

    def take(self, name: str, whole: HostTensor) -> None:
        if name not in self._group_of:
            return  # another slice's
        config, waiting, group = self._config, self._waiting, self._group_of[name]
        tensor = as_computed(config, name, self._tensors.part(name, whole))
        if (packed := pack(config, name, tensor, self._ops)) is not None:
            self.ready[name] = packed
            return
        waiting[name] = tensor
        if all(part in waiting for part in group):
            parts = [waiting.pop(part) for part in group]
            self.ready[next(iter(group))] = self._ops.weight(parts, is_exact=name in self._exact)
