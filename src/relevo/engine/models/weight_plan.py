"""Which tensors a decoder is made of: names (Hugging Face's and llama.cpp's), shapes, what a file may hold besides.

Pure; it imports no numpy: a process that only opens a model asks it. Reading and stacking are `weights`'.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from relevo.core.model import ModelConfig

KV_UP = "self_attn.kv_b_proj.weight"
LATENT_KEYS, LATENT_VALUES = "self_attn.k_b_proj.weight", "self_attn.v_b_proj.weight"  # it in two, in GGUF files only
DELTA_OUTPUT = "linear_attn.out_proj.weight"
_DELTA_NORM = "linear_attn.norm.weight"
EMBEDDING, FINAL_NORM, HEAD = "model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"
GGUF_TOP = {"token_embd.weight": EMBEDDING, "output_norm.weight": FINAL_NORM, "output.weight": HEAD}
GGUF_IN_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}

Shapes = dict[str, tuple[int, ...]]  # of the parts of one weight, in stacking order

# Buffers that some exporters keep and every reader computes: frequencies, their tables, positions, masks.
_HARMLESS = re.compile(
    r"(.*\.)?(rotary_emb\.(inv_freq|original_inv_freq|cos_cached|sin_cached)|position_ids|(attn|self_attn)\.masked_bias)"
)


def is_harmless(name: str) -> bool:
    """Whether a tensor that no weight is made of may be left out."""
    return _HARMLESS.fullmatch(name) is not None


def unasked(weights: Iterable[Shapes], names: Iterable[str]) -> list[str]:
    """Tensors that are neither part of these weights nor harmless: the model would compute without them."""
    asked = {name for group in weights for name in group}
    return [name for name in names if name not in asked and not is_harmless(name)]


def weight_groups(config: ModelConfig, stage: range | None = None) -> list[Shapes]:
    """Every weight of the decoder, by its parts; of a stage only, if these are its layers."""
    stage = range(config.num_layers) if stage is None else stage
    layers = [group for index in stage for group in layer_plan(config, index).values()]
    routed = [group for index in expert_layers(config) if index in stage for group in expert_plan(config, index).groups]
    latent = [group for index in stage for group in latent_plan(config, index).values()]
    delta = [group for index in stage for group in delta_plan(config, index).values()]
    return [*top_plan(config, stage).values(), *layers, *routed, *latent, *delta]


def exact_names(config: ModelConfig) -> frozenset[str]:
    """Parts that choose, and so are kept as they are stored, whatever weights are rounded to."""
    plans = [expert_plan(config, index) for index in expert_layers(config)]
    norms = [name for group in weight_groups(config) for name in group if has_offset(name)]
    routers = [name for plan in plans for name in (*plan.router, *plan.bias, *plan.logit_bias)]
    decays = [
        name
        for index in range(config.num_layers)
        for role, group in delta_plan(config, index).items()
        if role in ("decay", "decay_bias")
        for name in group
    ]
    return frozenset([*routers, *decays, *(norms if config.norm_offset else ())])


def has_offset(name: str) -> bool:
    """Of families whose norms are stored as their distance from one: whether this tensor is such a norm."""
    return name.endswith("norm.weight") and not name.endswith(_DELTA_NORM)


def expert_layers(config: ModelConfig) -> tuple[int, ...]:
    return config.experts.layers if config.experts else ()


@dataclass(frozen=True, slots=True)
class ExpertPlan:
    """The weights of one layer's experts, each with its parts."""

    router: Shapes
    bias: Shapes  # of the choice; empty: there is none
    logit_bias: Shapes  # of the scores; empty: there is none
    gate_up: tuple[Shapes, ...]  # by expert
    down: tuple[Shapes, ...]
    gate_up_bias: tuple[Shapes, ...]  # empty: there are none
    down_bias: tuple[Shapes, ...]

    @property
    def groups(self) -> list[Shapes]:
        lone = [group for group in (self.router, self.bias, self.logit_bias) if group]
        return [*lone, *self.gate_up, *self.down, *self.gate_up_bias, *self.down_bias]


def expert_plan(config: ModelConfig, index: int) -> ExpertPlan:
    experts = config.experts
    assert experts is not None, "the model has none"
    block = f"model.layers.{index}.{experts.block}."
    hidden, inner, count = config.hidden_size, experts.intermediate_size, experts.num_experts
    *gate_up, down = experts.projections
    rows = 2 * inner // len(gate_up)  # of each
    places = experts.places_in(index)
    held = range(count) if places is None else places.held

    def each(kind: str, names: list[str], shape: tuple[int, ...]) -> tuple[Shapes, ...]:
        return tuple({f"{block}experts.{number}.{name}.{kind}": shape for name in names} for number in held)

    return ExpertPlan(
        router={f"{block}{experts.router}.weight": (count, hidden)},
        bias={f"{block}{experts.bias}": (count,)} if experts.routing.has_bias else {},
        logit_bias={f"{block}{experts.router}.bias": (count,)} if experts.routing.has_logit_bias else {},
        gate_up=each("weight", gate_up, (rows, hidden)),
        down=each("weight", [down], (hidden, inner)),
        gate_up_bias=each("bias", gate_up, (rows,)) if experts.has_biases else (),
        down_bias=each("bias", [down], (hidden,)) if experts.has_biases else (),
    )


def latent_plan(config: ModelConfig, index: int) -> dict[str, Shapes]:
    """LatentWeights' fields, each with its part; empty: the model has no latents."""
    latent = config.latent
    if latent is None:
        return {}
    attention, rank, hidden = f"model.layers.{index}.self_attn.", latent.query_rank, config.hidden_size
    has_bias = config.attention_bias
    query = "q_proj" if rank is None else "q_b_proj"
    down_bias: Shapes = {attention + "kv_a_proj_with_mqa.bias": (latent.width,)} if has_bias else {}
    query_bias: Shapes = {attention + "q_a_proj.bias": (rank,)} if has_bias and rank else {}
    up_rows = config.num_heads * (latent.nope_size + latent.value_size)
    return {
        "query_down": {attention + "q_a_proj.weight": (rank, hidden)} if rank else {},
        "query_down_bias": query_bias,
        "query_norm": {attention + "q_a_layernorm.weight": (rank,)} if rank else {},
        "query": {f"{attention}{query}.weight": (config.num_heads * config.head_size, rank or hidden)},
        "down": {attention + "kv_a_proj_with_mqa.weight": (latent.width, hidden)},
        "down_bias": down_bias,
        "latent_norm": {attention + "kv_a_layernorm.weight": (latent.latent_size,)},
        "heads": {f"model.layers.{index}.{KV_UP}": (up_rows, latent.latent_size)},
    }


def delta_plan(config: ModelConfig, index: int) -> dict[str, Shapes]:
    """DeltaWeights' fields, each with its parts; empty: the layer keeps no state."""
    delta, hidden = config.delta, config.hidden_size
    if delta is None or index not in delta.layers:
        return {}
    block, heads = f"model.layers.{index}.linear_attn.", delta.num_value_heads
    inputs = {"in_proj_qkv": delta.width, "in_proj_z": delta.num_values}
    gates = {"in_proj_b": heads, "in_proj_a": heads}
    if delta.files.has_inputs_by_head:
        inputs = {"in_proj_qkvz": delta.width + delta.num_values}
    if delta.files.has_gates_by_head:
        gates = {"in_proj_ba": 2 * heads}
    plan: dict[str, Shapes] = {
        "inputs": {f"{block}{name}.weight": (rows, hidden) for name, rows in inputs.items()},
        "gates": {f"{block}{name}.weight": (rows, hidden) for name, rows in gates.items()},
        "convolution": {block + "conv1d.weight": (delta.width, 1, delta.kernel_size)},
        "decay": {block + "A_log": (heads,)},
        "decay_bias": {block + "dt_bias": (heads,)},
        "norm": {f"model.layers.{index}.{_DELTA_NORM}": (delta.value_size,)},
    }
    return plan


def top_plan(config: ModelConfig, stage: range) -> dict[str, Shapes]:
    """What stands before and behind the layers: of the first stage, and of the last. Both hold a tied matrix."""
    plan: dict[str, Shapes] = {}
    is_last = stage.stop == config.num_layers
    if stage.start == 0 or (is_last and config.tie_word_embeddings):
        plan["embedding"] = {EMBEDDING: (config.vocab_size, config.hidden_size)}
    if is_last:
        plan["final_norm"] = {FINAL_NORM: (config.hidden_size,)}
    if is_last and not config.tie_word_embeddings:
        plan["head"] = {HEAD: (config.vocab_size, config.hidden_size)}
    return plan


def _norms(prefix: str, hidden: int, are_sandwich: bool) -> dict[str, Shapes]:
    """Beside the input's. The same name is one norm in one kind of family and another in the other."""

    def norm(name: str) -> Shapes:
        return {f"{prefix}{name}_layernorm.weight": (hidden,)}

    after = norm("post_attention")
    if are_sandwich:
        return {"attention_norm": after, "mlp_norm": norm("pre_feedforward"), "output_norm": norm("post_feedforward")}
    return {"attention_norm": {}, "mlp_norm": after, "output_norm": {}}


def layer_plan(config: ModelConfig, index: int) -> dict[str, Shapes]:
    """LayerWeights' fields, each with its parts; no parts: the model has no such weight."""
    prefix = f"model.layers.{index}."
    attention, mlp = prefix + "self_attn.", f"{prefix}{config.mlp}."
    hidden, inner, size = config.hidden_size, config.intermediate_size, config.head_size
    if config.experts is not None and index in config.experts.layers:
        mlp, inner = f"{prefix}{config.experts.block}.{config.experts.shared}.", config.experts.shared_size
    query, key = config.num_heads * size, config.num_kv_heads * size
    qkv_rows = {"q_proj": query * (2 if config.gated_attention else 1), "k_proj": key, "v_proj": key}
    keeps_state = config.delta is not None and index in config.delta.layers
    output: Shapes = {attention + "o_proj.weight": (hidden, query)}
    if config.delta is not None and keeps_state:
        qkv_rows, output = {}, {prefix + DELTA_OUTPUT: (hidden, config.delta.num_values)}
    if config.latent is not None:
        qkv_rows, query = {}, config.num_heads * config.latent.value_size
        output = {attention + "o_proj.weight": (hidden, query)}

    def biases(present: bool, stem: str, rows: dict[str, int]) -> Shapes:
        return {f"{stem}{name}.bias": (count,) for name, count in rows.items()} if present else {}

    def head_norm(name: str, rows: int) -> Shapes:
        width = rows if config.qk_norm_spans_heads else size
        return {f"{attention}{name}.weight": (width,)} if config.qk_norm and not keeps_state else {}

    experts = config.experts
    shared_gate = experts.shared_gate if experts is not None and index in experts.layers else ""

    return {
        "input_norm": {prefix + "input_layernorm.weight": (hidden,)},
        "qkv": {f"{attention}{name}.weight": (rows, hidden) for name, rows in qkv_rows.items()},
        "qkv_bias": biases(config.qkv_bias, attention, qkv_rows),
        "q_norm": head_norm("q_norm", query),
        "k_norm": head_norm("k_norm", key),
        "output": output,
        "output_bias": biases(config.attention_bias and not keeps_state, attention, {"o_proj": hidden}),
        "sinks": {attention + "sinks": (config.num_heads,)} if config.sinks else {},
        **_norms(prefix, hidden, config.sandwich_norms),
        "gate_up": {f"{mlp}{name}.weight": (inner, hidden) for name in ("gate_proj", "up_proj")} if inner else {},
        "gate_up_bias": biases(config.mlp_bias, mlp, {"gate_proj": inner, "up_proj": inner}),
        "down": {mlp + "down_proj.weight": (hidden, inner)} if inner else {},
        "down_bias": biases(config.mlp_bias, mlp, {"down_proj": hidden}),
        "shared_gate": {f"{prefix}{experts.block}.{shared_gate}.weight": (1, hidden)}
        if experts and shared_gate
        else {},
    }
