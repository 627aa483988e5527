"""The decoder that families of the Llama kind share, with an MLP or with experts in a layer, written against `ops`.

Owns the order of operations. It does not know a backend, files, scheduling or sampling. What sets the families apart
(biases, head norms, windows, rope scalings, routers) is in ModelConfig; an absent weight is None.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from relevo.core.model import ModelConfig
from relevo.engine.inputs import StepInputs
from relevo.engine.models.latent_attention import attend_latents
from relevo.engine.models.rope import rope_frequencies
from relevo.engine.models.weights import DecoderWeights, LayerWeights, load_weights
from relevo.engine.ops.protocol import (
    AttentionRule,
    Buffer,
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

    rule: AttentionRule
    angles: Buffer | None  # that queries and keys are turned by
    growth: Buffer | None  # that queries are scaled by


class Decoder:
    def __init__(self, config: ModelConfig, weights: DecoderWeights, ops: Ops, max_model_len: int) -> None:
        """`max_model_len`, tokens, fixes the frequencies of length-dependent rope scalings. Raises UnsupportedModel."""
        self.config = config
        self.ops = ops
        self.max_model_len = max_model_len
        self._weights = weights
        self._turns = rope_frequencies(config, max_model_len)
        self._local_turns = rope_frequencies(config.local_rope(), max_model_len)
        ones = np.ones(config.head_size, np.float32)
        self._unit_norm = ops.weight([HostTensor(ones, "float32")]) if config.unit_qk_norm else None
        self._program = ops.program(self._trace, config.sliding_window)

    @classmethod
    def load(
        cls, config: ModelConfig, tensors: Iterable[tuple[str, HostTensor]], ops: Ops, max_model_len: int
    ) -> Decoder:
        """Raises ModelFileError, UnsupportedModel."""
        return cls(config, load_weights(config, tensors, ops), ops, max_model_len)

    def forward(self, inputs: StepInputs, kv: Buffer, logit_tokens: Sequence[int]) -> StepLogits:
        """Compute a step, writing its KV; next-token logits after these tokens of the step, valid until the next."""
        return self._program.run(inputs, kv, logit_tokens)

    def _trace(self, ops: Operations) -> Buffer:
        eps = self.config.rms_norm_eps
        attentions = self._attentions(ops)
        x = ops.embed(self._weights.embedding, self.config.embedding_scale)
        for index, layer in enumerate(self._weights.layers):
            attended = self._attention(ops, x, layer, index, attentions[index])
            if layer.attention_norm is not None:
                attended = ops.rms_norm(attended, layer.attention_norm, eps)
            x = ops.add(x, attended)
            for part in self._mlp(ops, x, layer):
                x = ops.add(x, part if layer.output_norm is None else ops.rms_norm(part, layer.output_norm, eps))
        x = ops.rms_norm(x, self._weights.final_norm, eps)
        return ops.logits(x, self._weights.head)

    def _attentions(self, ops: Operations) -> list[LayerAttention]:
        """Of every layer; what several need is made once."""
        config, local = self.config, self.config.local
        angles = ops.rope_angles(*self._turns)
        local_angles = ops.rope_angles(*self._local_turns) if local and local.rope_theta is not None else angles
        growth = None
        if config.query_growth is not None:
            growth = ops.rope_angles(np.zeros(config.head_size // 2, np.float32), 1.0, config.query_growth)
        attentions = []
        for index, layer in enumerate(self._weights.layers):
            is_local, is_turned = local is not None and index in local.layers, index not in config.unturned_layers
            reach = Reach(local.window, local.chunk) if local and is_local else Reach()
            rule = AttentionRule(reach, config.attention_scale, layer.sinks)
            turned_by = (local_angles if is_local else angles) if is_turned else None
            attentions.append(LayerAttention(rule, turned_by, None if is_turned else growth))
        return attentions

    def _attention(
        self, ops: Operations, x: Buffer, layer: LayerWeights, index: int, attention: LayerAttention
    ) -> Buffer:
        config = self.config
        x = ops.rms_norm(x, layer.input_norm, config.rms_norm_eps)
        if layer.latent is not None:
            attended = attend_latents(ops, x, config, layer.latent, index, attention.angles)  # [T, H * V]
            return ops.linear(attended, layer.output, layer.output_bias)
        qkv = ops.linear(x, layer.qkv, layer.qkv_bias)
        heads = (config.num_heads, config.num_kv_heads, config.num_kv_heads)
        q, k, v = ops.split_heads(qkv, heads, config.head_size)  # [T, H, D], [T, K, D], [T, K, D]
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
        attended = ops.attention(q, k, v, index, attention.rule)  # [T, H * D]
        return ops.linear(attended, layer.output, layer.output_bias)

    def _mlp(self, ops: Operations, x: Buffer, layer: LayerWeights) -> list[Buffer]:
        """What is added to x: of the experts, and of the MLP that every token passes."""
        x, parts = ops.rms_norm(x, layer.mlp_norm, self.config.rms_norm_eps), []
        if layer.experts is not None and self.config.experts is not None:
            experts, config = layer.experts, self.config.experts
            router = Router(experts.router, experts.bias, config.routing, experts.logit_bias)
            parts.append(ops.experts(x, router, experts.gate_up, experts.down, experts.biases, config.activation))
        if layer.gate_up is not None and layer.down is not None:
            inner = ops.activate(ops.linear(x, layer.gate_up, layer.gate_up_bias), self.config.activation)
            parts.append(ops.linear(inner, layer.down, layer.down_bias))
        return parts
