"""The decoder that families of the Llama kind share, with an MLP or with experts in a layer, written against `ops`.

Owns the order of operations. It does not know a backend, files, scheduling or sampling. What sets the families apart
(biases, head norms, windows, rope scalings, routers) is in ModelConfig; an absent weight is None.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from relevo.core.model import ModelConfig
from relevo.engine.inputs import StepInputs
from relevo.engine.models.latent_attention import attend_latents
from relevo.engine.models.rope import rope_frequencies
from relevo.engine.models.weights import DecoderWeights, LayerWeights, load_weights
from relevo.engine.ops.protocol import Buffer, HostTensor, Operations, Ops, Router, StepLogits


class Decoder:
    def __init__(self, config: ModelConfig, weights: DecoderWeights, ops: Ops, max_model_len: int) -> None:
        """`max_model_len`, tokens, fixes the frequencies of length-dependent rope scalings. Raises UnsupportedModel."""
        self.config = config
        self.ops = ops
        self.max_model_len = max_model_len
        self._weights = weights
        self._inv_freq, self._rope_scale = rope_frequencies(config, max_model_len)
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
        angles = ops.rope_angles(self._inv_freq, self._rope_scale)
        x = ops.embed(self._weights.embedding)
        for index, layer in enumerate(self._weights.layers):
            x = ops.add(x, self._attention(ops, x, layer, index, angles))
            for part in self._mlp(ops, x, layer):
                x = ops.add(x, part)
        x = ops.rms_norm(x, self._weights.final_norm, self.config.rms_norm_eps)
        return ops.logits(x, self._weights.head)

    def _attention(self, ops: Operations, x: Buffer, layer: LayerWeights, index: int, angles: Buffer) -> Buffer:
        config = self.config
        x = ops.rms_norm(x, layer.input_norm, config.rms_norm_eps)
        if layer.latent is not None:
            attended = attend_latents(ops, x, config, layer.latent, index, angles)  # [T, H * V]
            return ops.linear(attended, layer.output, layer.output_bias)
        qkv = ops.linear(x, layer.qkv, layer.qkv_bias)
        heads = (config.num_heads, config.num_kv_heads, config.num_kv_heads)
        q, k, v = ops.split_heads(qkv, heads, config.head_size)  # [T, H, D], [T, K, D], [T, K, D]
        if layer.q_norm is not None and layer.k_norm is not None:
            q = ops.rms_norm(q, layer.q_norm, config.rms_norm_eps)
            k = ops.rms_norm(k, layer.k_norm, config.rms_norm_eps)
        q, k = ops.rope(q, angles), ops.rope(k, angles)
        attended = ops.attention(q, k, v, index)  # [T, H * D]
        return ops.linear(attended, layer.output, layer.output_bias)

    def _mlp(self, ops: Operations, x: Buffer, layer: LayerWeights) -> list[Buffer]:
        """What is added to x: of the experts, and of the MLP that every token passes."""
        x, parts = ops.rms_norm(x, layer.mlp_norm, self.config.rms_norm_eps), []
        if layer.experts is not None and self.config.experts is not None:
            experts = layer.experts
            router = Router(experts.router, experts.bias, self.config.experts.routing)
            parts.append(ops.experts(x, router, experts.gate_up, experts.down))
        if layer.gate_up is not None and layer.down is not None:
            inner = ops.silu_mul(ops.linear(x, layer.gate_up, layer.gate_up_bias))
            parts.append(ops.linear(inner, layer.down, layer.down_bias))
        return parts
