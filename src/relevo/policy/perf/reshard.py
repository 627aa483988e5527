"""What it costs to hand KV over between workers that cut it differently.

Heads of one token lie side by side. Where both workers cut heads into as many parts a block travels as it lies; where
they do not, every layer's keys and values of every page are cut, and each piece is a write of its own. Their number,
not their bytes, is what takes time then: engines with pages of one token have hundreds of thousands for a prompt.
Latents are not cut by heads, so they never pay.

Measured: servers of AIConfigurator's silicon table that cut Qwen3-32B from one rank to two, four or eight with pages of
one token answer a tenth of what the same devices do without a cut (SGLang), with pages of 16 they do not suffer (vLLM).
"""

from __future__ import annotations

from relevo.core.kv import KVKind
from relevo.policy.perf.model_shape import ModelShape
from relevo.policy.perf.parallelism import Parallelism

WRITE_S = 4e-6  # of one small write, of one worker, one after the other. Fitted to three servers, within 2.6 times
PAGE_TOKENS = {"sglang": 1, "vllm": 16, "trtllm": 32}  # defaults of engines for caches that are cut by heads
USUAL_PAGE_TOKENS = 16


def reshard_s(
    shape: ModelShape, sender: Parallelism, receiver: Parallelism, num_tokens: float, page_tokens: int
) -> float:
    """Of the sending worker, for one prompt; 0 where nothing is cut."""
    num_writes = 0.0
    for layers in shape.attention:
        if layers.cache.kind is KVKind.LATENT or layers.cache.is_bounded:
            continue
        if sender.kv_shards(layers) != receiver.kv_shards(layers):
            num_writes += 2 * layers.num_layers * num_tokens / page_tokens  # keys and values
    return num_writes * WRITE_S
