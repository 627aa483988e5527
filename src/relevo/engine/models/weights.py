"""The weights of a decoder: which tensors it is made of, checked and handed to a backend.

Owns which of them are stacked into one matrix (q, k, v; gate and up: one multiplication instead of three or two). Names
and shapes are `weight_plan`'s. It does not know files or quantisation.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from relevo.core.errors import ModelFileError
from relevo.core.model import ModelConfig
from relevo.engine.models.latent_weights import LatentWeights, latent_weights, pack
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
from relevo.engine.ops.protocol import Buffer, ExpertBiases, HostTensor, Ops


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertWeights:
    router: Buffer  # [experts, E] float32
    bias: Buffer | None  # [experts] float32, of the choice
    logit_bias: Buffer | None  # [experts] float32, of the scores
    biases: ExpertBiases | None
    gate_up: tuple[Buffer, ...]  # by expert, [2I, E]
    down: tuple[Buffer, ...]  # [E, I]


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerWeights:
    """None: the model has no such weight."""

    input_norm: Buffer
    qkv: Buffer | None  # [(H + 2K) * D, E]; None: there are latents
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
    experts: ExpertWeights | None
    latent: LatentWeights | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderWeights:
    embedding: Buffer  # [V, E]
    layers: tuple[LayerWeights, ...]
    final_norm: Buffer
    head: Buffer  # [V, E]; the embedding itself when they are tied


def load_weights(config: ModelConfig, tensors: Iterable[tuple[str, HostTensor]], ops: Ops) -> DecoderWeights:
    """Consume `tensors` once, in any order. Raises ModelFileError for a missing tensor or a wrong shape.

    A tensor that the model does not use is skipped: loaders refuse such names (`weight_plan.unasked`).
    """
    ready = _gather(config, exact_names(config), as_computed(config, tensors), ops)
    top = {role: ready[next(iter(group))] for role, group in top_plan(config).items()}
    layers = tuple(
        LayerWeights(
            **{role: ready[next(iter(group))] if group else None for role, group in layer_plan(config, index).items()},
            experts=_experts(config, index, ready) if index in expert_layers(config) else None,
            latent=latent_weights(config, index, ready) if config.latent else None,
        )
        for index in range(config.num_layers)
    )
    return DecoderWeights(
        embedding=top["embedding"], layers=layers, final_norm=top["final_norm"], head=top.get("head", top["embedding"])
    )


def _experts(config: ModelConfig, index: int, ready: Mapping[str, Buffer]) -> ExpertWeights:
    plan = expert_plan(config, index)

    def of(groups: Iterable[Shapes]) -> tuple[Buffer, ...]:
        return tuple(ready[next(iter(group))] for group in groups)

    return ExpertWeights(
        router=of([plan.router])[0],
        bias=of([plan.bias])[0] if plan.bias else None,
        logit_bias=of([plan.logit_bias])[0] if plan.logit_bias else None,
        biases=ExpertBiases(of(plan.gate_up_bias), of(plan.down_bias)) if plan.gate_up_bias else None,
        gate_up=of(plan.gate_up),
        down=of(plan.down),
    )


def _gather(
    config: ModelConfig, exact: Collection[str], tensors: Iterable[tuple[str, HostTensor]], ops: Ops
) -> dict[str, Buffer]:
    """Weights by the name of their first part. Parts wait only until their group is complete."""
    group_of = {name: group for group in weight_groups(config) for name in group}
    waiting: dict[str, HostTensor] = {}
    ready: dict[str, Buffer] = {}
    loaded: set[str] = set()
    for name, tensor in tensors:
        group = group_of.get(name)
        if group is None:
            continue
        if tensor.shape != group[name]:
            raise ModelFileError(
                f"tensor {name} has shape {list(tensor.shape)}, the config asks for {list(group[name])}; "
                "weights and config do not belong together"
            )
        loaded.add(name)
        if (packed := pack(config, name, tensor, ops)) is not None:
            ready[name] = packed
            continue
        waiting[name] = tensor
        if all(part in waiting for part in group):
            ready[next(iter(group))] = ops.weight([waiting.pop(part) for part in group], is_exact=name in exact)
    missing = [name for name in group_of if name not in loaded]
    if missing:
        raise ModelFileError(
            f"{len(missing)} of {len(group_of)} tensors are missing, the first is {missing[0]}; "
            "the download is incomplete or the config is another model's"
        )
    return ready
