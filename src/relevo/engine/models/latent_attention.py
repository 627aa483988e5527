"""Multi-head latent attention, absorbed: attention over the latents themselves, with one key for all heads.

A head's key is W_k times the latent, so its score is (W_k^T q) times the latent: queries go to the latents, and values
come from what was attended. Prompts are computed likewise, so that a token has the same bits in any chunk. Source:
DeepSeek-V2 (arXiv:2405.04434), section 2.1, and the modeling code of Hugging Face `transformers`.
"""

from __future__ import annotations

import math

from relevo.core.model import LatentAttention, ModelConfig
from relevo.engine.models.latent_weights import LatentWeights
from relevo.engine.ops.protocol import Buffer, Operations

_INNER_EPS = 1e-6  # of both inner norms, whatever `rms_norm_eps` says; as transformers has it


def attend_latents(
    ops: Operations, x: Buffer, config: ModelConfig, weights: LatentWeights, layer: int, angles: Buffer
) -> Buffer:
    """x [T, E], normed -> [T, H * V]"""
    latent, num_heads = config.latent, config.num_heads
    assert latent is not None, "the model has none"
    if weights.query_down is not None:
        queries = ops.rms_norm(
            ops.linear(x, weights.query_down, weights.query_down_bias), weights.query_norm, _INNER_EPS
        )
    else:
        queries = x
    plain, rotated = ops.split(
        ops.linear(queries, weights.query, None), (num_heads * latent.nope_size, num_heads * latent.rope_size)
    )
    kept, key = ops.split(ops.linear(x, weights.down, weights.down_bias), (latent.latent_size, latent.rope_size))
    kept = ops.rms_norm(kept, weights.latent_norm, _INNER_EPS)
    (rotated,) = ops.split_heads(rotated, (num_heads,), latent.rope_size)
    (key,) = ops.split_heads(key, (1,), latent.rope_size)
    rotated, key = ops.rope(rotated, angles), ops.rope(key, angles)
    to_latent, to_value = weights.heads
    attended = ops.latent_attention(
        ops.linear_heads(plain, to_latent), rotated, kept, key, layer, softmax_scale(config, latent)
    )
    return ops.linear_heads(attended, to_value)


def softmax_scale(config: ModelConfig, latent: LatentAttention) -> float:
    """YaRN stretches scores by the square of its magnitude for `mscale_all_dim`, beside what it does to cosines."""
    scale = (latent.nope_size + latent.rope_size) ** -0.5
    weight, factor = config.rope_scaling.get("mscale_all_dim", 0), config.rope_scaling.get("factor", 1.0)
    if weight and factor > 1:
        scale *= (0.1 * weight * math.log(factor) + 1.0) ** 2
    return float(scale)
