"""The decoder that families of the Llama kind share, with an MLP or with experts in a layer, written against `ops`.

Owns the order of operations. It does not know a backend, files, scheduling or sampling. What sets the families apart
(biases, head norms, windows, rope scalings, routers) is in ModelConfig; an absent weight is None. On a rank of several
it computes the rank's slices of the model, and what they come to is summed with what the others' come to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from relevo.core.model import ModelConfig
from relevo.engine.inputs import StepInputs
from relevo.engine.models.delta_weights import DeltaWeights
from relevo.engine.models.expert_counts import ExpertCounts
from relevo.engine.models.latent_attention import attend_latents
from relevo.engine.models.rope import rope_frequencies
from relevo.engine.models.slices import Share, Slice
from relevo.engine.models.weights import DecoderWeights, LayerWeights, load_slices
from relevo.engine.ops.protocol import (
    AttentionRule,
    Buffer,
    DeltaRule,
    Hidden,
    HostTensor,
    Operations,
    Ops,
    Reach,
    Router,
    StepLogits,
)


@dataclass(frozen=True, slots=True)
class LayerAttention:
    """What sets the attention of a layer apart from others'."""

    reach: Reach
    angles: Buffer | None  # that queries and keys are turned by
    growth: Buffer | None  # that queries are scaled by


@dataclass(frozen=True, slots=True)
class LoadedSlice:
    part: Slice
    weights: DecoderWeights


class Decoder:
    def __init__(
        self,
        config: ModelConfig,
        slices: Sequence[LoadedSlice],
        ops: Ops,
        max_model_len: int,
        *,
        stage: range,
        is_summed: bool,
    ) -> None:
        """`slices`: of this rank. `stage`: the layers that are computed here. `is_summed`: there may be others, and
        what all come to is summed. `max_model_len`, tokens, fixes the frequencies of length-dependent rope scalings.
        Raises UnsupportedModel."""
        self.config = config
        self.ops = ops
        self.max_model_len = max_model_len
        self.stage = stage
        self._slices, self._is_summed = slices, is_summed
        self._common = slices[0].weights  # where all slices have the same: norms, embedding, head
        self._turns = rope_frequencies(config, max_model_len)
        self._local_turns = rope_frequencies(config.local_rope(), max_model_len)
        ones = np.ones(config.head_size, np.float32)
        self._unit_norm = ops.weight([HostTensor(ones, "float32")]) if config.unit_qk_norm else None
        self.expert_counts = ExpertCounts.of_stage(slices[0].part.config, stage)
        self._program = ops.program(self._trace, config.sliding_window, stage)

    @classmethod
    def load(
        cls,
        config: ModelConfig,
        tensors: Iterable[tuple[str, HostTensor]],
        ops: Ops,
        max_model_len: int,
        share: Share | None = None,
        stage: range | None = None,
    ) -> Decoder:
        """`share`: None: the whole model, uncut. `stage`: None: all layers. Raises ModelFileError, UnsupportedModel."""
        parts = (Slice(config),) if share is None else share.slices(config)
        stage = range(config.num_layers) if stage is None else stage
        weights = load_slices(config, parts, tensors, ops, stage)
        slices = tuple(LoadedSlice(part, own) for part, own in zip(parts, weights, strict=True))
        return cls(config, slices, ops, max_model_len, stage=stage, is_summed=share is not None)

    def forward(
        self, inputs: StepInputs, kv: Buffer, logit_tokens: Sequence[int], hidden: Hidden | None = None
    ) -> StepLogits:
        return self._program.run(inputs, kv, logit_tokens, hidden)

    def forward_inner(self, inputs: StepInputs, kv: Buffer, hidden: Hidden | None) -> Hidden:
        return self._program.run_inner(inputs, kv, hidden)

    def _trace(self, ops: Operations) -> Buffer:
        eps, stage = self.config.rms_norm_eps, self.stage
        attentions = self._attentions(ops)
        if stage.start == 0:
            x = ops.embed(self._common.embedding, self.config.embedding_scale)
        else:
            x = ops.hidden_in(self.config.hidden_size)
        for index, layer, attention in zip(stage, self._common.layers, attentions, strict=True):
            attended = self._attention(ops, ops.rms_norm(x, layer.input_norm, eps), index, attention)
            if layer.attention_norm is not None:
                attended = ops.rms_norm(attended, layer.attention_norm, eps)
            x = ops.add(x, attended)
            for part in self._mlp(ops, ops.rms_norm(x, layer.mlp_norm, eps), index):
                x = ops.add(x, part if layer.output_norm is None else ops.rms_norm(part, layer.output_norm, eps))
        if stage.stop < self.config.num_layers:
            return ops.hidden_out(x)
        x = ops.rms_norm(x, self._common.final_norm, eps)
        return ops.logits(x, self._common.head)

    def _attentions(self, ops: Operations) -> list[LayerAttention]:
        """Of every layer of the stage; what several need is made once."""
        config, local = self.config, self.config.local
        angles = ops.rope_angles(*self._turns)
        local_angles = ops.rope_angles(*self._local_turns) if local and local.rope_theta is not None else angles
        growth = None
        if config.query_growth is not None:
            growth = ops.rope_angles(np.zeros(config.head_size // 2, np.float32), 1.0, config.query_growth)
        attentions = []
        for index in self.stage:
            is_local, is_turned = local is not None and index in local.layers, index not in config.unturned_layers
            reach = Reach(local.window, local.chunk) if local and is_local else Reach()
            turned_by = (local_angles if is_local else angles) if is_turned else None
            attentions.append(LayerAttention(reach, turned_by, None if is_turned else growth))
        return attentions

    def _sum(self, ops: Operations, index: int, compute: Callable[[Slice, LayerWeights], Sequence[Buffer]]) -> Buffer:
        """Of what every slice makes of a layer, those of other ranks too. One may compute what several make."""
        place = index - self.stage.start
        parts = [part for each in self._slices for part in compute(each.part, each.weights.layers[place])]
        return ops.reduce(parts) if self._is_summed else parts[0]

    def _attention(self, ops: Operations, x: Buffer, index: int, attention: LayerAttention) -> Buffer:
        """x [T, E], normed -> [T, E]"""

        def of_slice(part: Slice, layer: LayerWeights) -> Sequence[Buffer]:
            if layer.delta is not None:
                attended = self._from_state(ops, x, part, layer.delta, index)
            elif layer.latent is not None:
                attended = attend_latents(ops, x, part.config, layer.latent, index, attention.angles)  # [T, H * V]
            else:
                attended = self._attended(ops, x, part, layer, index, attention)  # [T, H * D]
            return [ops.linear(attended, layer.output, layer.output_bias)]

        return self._sum(ops, index, of_slice)

    def _attended(
        self, ops: Operations, x: Buffer, part: Slice, layer: LayerWeights, index: int, attention: LayerAttention
    ) -> Buffer:
        config = part.config
        qkv = ops.linear(x, layer.qkv, layer.qkv_bias)
        queries = (config.num_heads,) * (2 if config.gated_attention else 1)
        heads = (*queries, config.num_kv_heads, config.num_kv_heads)
        q, *gates, k, v = ops.split_heads(qkv, heads, config.head_size)  # [T, H, D], [T, K, D], [T, K, D]
        if layer.q_norm is not None and layer.k_norm is not None:
            q = ops.rms_norm(q, layer.q_norm, config.rms_norm_eps)
            k = ops.rms_norm(k, layer.k_norm, config.rms_norm_eps)
        if attention.angles is not None:
            q, k = ops.rope(q, attention.angles), ops.rope(k, attention.angles)
            if self._unit_norm is not None:
                q = ops.rms_norm(q, self._unit_norm, config.rms_norm_eps)
                k = ops.rms_norm(k, self._unit_norm, config.rms_norm_eps)
        if attention.growth is not None:
            q = ops.rope(q, attention.growth)
        rule = AttentionRule(attention.reach, config.attention_scale, layer.sinks, part.first_kv_head)
        attended = ops.attention(q, k, v, index, rule)
        return ops.gate(attended, gates[0]) if gates else attended

    def _from_state(self, ops: Operations, x: Buffer, part: Slice, layer: DeltaWeights, index: int) -> Buffer:
        delta, whole = part.config.delta, self.config.delta
        assert delta is not None and whole is not None, "the layer has a state"
        qkv, z = ops.split(ops.linear(x, layer.inputs, None), (delta.width, delta.num_values))
        heads = (whole.num_key_heads, part.number * delta.num_key_heads)
        rule = DeltaRule(delta, *heads, layer.convolution, layer.decay, layer.decay_bias)
        values = ops.gated_delta(qkv, ops.linear(x, layer.gates, None), index, rule)
        return ops.gated_norm(values, layer.norm, z, part.config.rms_norm_eps)

    def _mlp(self, ops: Operations, x: Buffer, index: int) -> list[Buffer]:
        """What is added to the hidden state, of x, normed: by the experts, and by the MLP that every token passes."""

        def of_experts(part: Slice, layer: LayerWeights) -> Sequence[Buffer]:
            own, config = layer.experts, part.config.experts
            assert own is not None and config is not None, "the layer has experts"
            places = config.places_in(index)
            if places is not None and not places.num_slices:
                return []
            is_counted = part is self._slices[0].part  # all slices choose alike
            counts, rank_counts = self.expert_counts.of_layer(index) if is_counted else (None, None)
            router = Router(own.router, own.bias, config.routing, own.logit_bias, places, counts, rank_counts)
            return ops.experts(x, router, own.gate_up, own.down, own.biases, config.activation)

        def of_mlp(_: Slice, layer: LayerWeights) -> Sequence[Buffer]:
            inner = ops.activate(ops.linear(x, layer.gate_up, layer.gate_up_bias), self.config.activation)
            out = ops.linear(inner, layer.down, layer.down_bias)
            return [out if layer.shared_gate is None else ops.gate(out, ops.linear(x, layer.shared_gate, None))]

        layer = self._common.layers[index - self.stage.start]
        kinds: list[Callable[[Slice, LayerWeights], Sequence[Buffer]]] = []
        kinds += [of_experts] if layer.experts is not None else []
        kinds += [of_mlp] if layer.gate_up is not None else []
        return [self._sum(ops, index, of_kind) for of_kind in kinds]
