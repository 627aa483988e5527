"""The weights of a decoder: which tensors it is made of, checked and handed to a backend.

Owns the names (Hugging Face's), the shapes they must have, and which of them are stacked into one matrix (q, k, v; gate
and up: one multiplication instead of three or two). It does not know files or quantisation.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from relevo.core.errors import ModelFileError
from relevo.core.model import ModelConfig
from relevo.engine.ops.protocol import Buffer, HostTensor, Ops

EMBEDDING, FINAL_NORM, HEAD = "model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerWeights:
    """None: the model has no such weight."""

    input_norm: Buffer
    qkv: Buffer  # [(H + 2K) * D, E]
    qkv_bias: Buffer | None
    q_norm: Buffer | None  # [D]
    k_norm: Buffer | None  # [D]
    output: Buffer  # [E, H * D]
    output_bias: Buffer | None
    mlp_norm: Buffer
    gate_up: Buffer  # [2I, E]
    gate_up_bias: Buffer | None
    down: Buffer  # [E, I]
    down_bias: Buffer | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderWeights:
    embedding: Buffer  # [V, E]
    layers: tuple[LayerWeights, ...]
    final_norm: Buffer
    head: Buffer  # [V, E]; the embedding itself when they are tied


Shapes = dict[str, tuple[int, ...]]  # of the parts of one weight, in stacking order


def load_weights(config: ModelConfig, tensors: Iterable[tuple[str, HostTensor]], ops: Ops) -> DecoderWeights:
    """Consume `tensors` once, in any order. Raises ModelFileError for a missing tensor or a wrong shape.

    A tensor that the model does not use is skipped: checkpoints carry buffers that can be computed.
    """
    layer_plans = [_layer_plan(config, index) for index in range(config.num_layers)]
    top_plan = _top_plan(config)
    groups = [*top_plan.values(), *(group for plan in layer_plans for group in plan.values())]
    ready = _gather(groups, tensors, ops)
    top = {role: ready[next(iter(group))] for role, group in top_plan.items()}
    layers = tuple(
        LayerWeights(**{role: ready[next(iter(group))] if group else None for role, group in plan.items()})
        for plan in layer_plans
    )
    return DecoderWeights(
        embedding=top["embedding"], layers=layers, final_norm=top["final_norm"], head=top.get("head", top["embedding"])
    )


def _gather(groups: list[Shapes], tensors: Iterable[tuple[str, HostTensor]], ops: Ops) -> dict[str, Buffer]:
    """Weights by the name of their first part. Parts wait only until their group is complete."""
    group_of = {name: group for group in groups for name in group}
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
        waiting[name] = tensor
        loaded.add(name)
        if all(part in waiting for part in group):
            ready[next(iter(group))] = ops.weight([waiting.pop(part) for part in group])
    missing = [name for name in group_of if name not in loaded]
    if missing:
        raise ModelFileError(
            f"{len(missing)} of {len(group_of)} tensors are missing, the first is {missing[0]}; "
            "the download is incomplete or the config is another model's"
        )
    return ready


def _top_plan(config: ModelConfig) -> dict[str, Shapes]:
    plan: dict[str, Shapes] = {
        "embedding": {EMBEDDING: (config.vocab_size, config.hidden_size)},
        "final_norm": {FINAL_NORM: (config.hidden_size,)},
    }
    if not config.tie_word_embeddings:
        plan["head"] = {HEAD: (config.vocab_size, config.hidden_size)}
    return plan


def _layer_plan(config: ModelConfig, index: int) -> dict[str, Shapes]:
    """LayerWeights' fields, each with its parts; no parts: the model has no such weight."""
    prefix = f"model.layers.{index}."
    attention, mlp = prefix + "self_attn.", prefix + "mlp."
    hidden, inner, size = config.hidden_size, config.intermediate_size, config.head_size
    query, key = config.num_heads * size, config.num_kv_heads * size
    qkv_rows = {"q_proj": query, "k_proj": key, "v_proj": key}

    def biases(present: bool, stem: str, rows: dict[str, int]) -> Shapes:
        return {f"{stem}{name}.bias": (count,) for name, count in rows.items()} if present else {}

    def head_norm(name: str) -> Shapes:
        return {f"{attention}{name}.weight": (size,)} if config.qk_norm else {}

    return {
        "input_norm": {prefix + "input_layernorm.weight": (hidden,)},
        "qkv": {f"{attention}{name}.weight": (rows, hidden) for name, rows in qkv_rows.items()},
        "qkv_bias": biases(config.qkv_bias, attention, qkv_rows),
        "q_norm": head_norm("q_norm"),
        "k_norm": head_norm("k_norm"),
        "output": {attention + "o_proj.weight": (hidden, query)},
        "output_bias": biases(config.attention_bias, attention, {"o_proj": hidden}),
        "mlp_norm": {prefix + "post_attention_layernorm.weight": (hidden,)},
        "gate_up": {f"{mlp}{name}.weight": (inner, hidden) for name in ("gate_proj", "up_proj")},
        "gate_up_bias": biases(config.mlp_bias, mlp, {"gate_proj": inner, "up_proj": inner}),
        "down": {mlp + "down_proj.weight": (hidden, inner)},
        "down_bias": biases(config.mlp_bias, mlp, {"down_proj": hidden}),
    }
