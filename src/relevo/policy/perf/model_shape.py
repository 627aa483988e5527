"""The shape of a model as far as time and memory depend on it: weights per part, KV per token, attention per layer.

Owns no numbers of devices and no way to split. Layers that are alike are counted, not listed. Counts of weights leave
out norms and biases (below one part in a thousand). Reading a config is `model_config`'s.
"""

from __future__ import annotations

from dataclasses import dataclass

from relevo.core.kv import KVGroup
from relevo.policy.perf.weight_formats import WeightFormat, WeightFormats

# Kernels that engines launch in one layer, roughly: a layer's fixed cost goes with them. Counted by hand, arbitrary to
# within a few.
GROUPED_LAUNCHES = 5  # norm, projection, rope and KV write, attention, output
LATENT_LAUNCHES = 9  # two projections down and their norms, one up, rope, two absorbed products, attention, output
INDEXER_LAUNCHES = 8  # of sparse attention besides: projections, norm, rope, quantisation, scores, selection
STATE_LAUNCHES = 8  # two projections, convolution, gates, state, norms, output
MLP_LAUNCHES = 4  # norm, up, activation, down


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionLayers:
    """Layers whose attention is alike. Sizes in values, per layer; a token and a token it sees are a pair."""

    cache: KVGroup  # which layers they are, and what they keep
    num_weights: int  # of projections that tensor parallelism divides
    num_replicated_weights: int = 0  # of projections that every rank holds (down-projections of MLA, indexers)
    products_per_decode_pair: int = 0  # multiply-adds, all heads; absorbed form for latents
    products_per_prefill_pair: int = 0
    num_selected: int | None = None  # tokens that sparse attention reads of all that are kept
    index_products_per_pair: int = 0
    num_launches: int = GROUPED_LAUNCHES
    num_heads: int = 0  # of queries, or of a state's values: what tensor parallelism divides; 0: not known

    @property
    def num_layers(self) -> int:
        return self.cache.num_layers

    @property
    def max_span(self) -> int | None:
        """Tokens that a token reads at most; None: all before it."""
        return self.num_selected or self.cache.span or None


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts:
    """Of layers with routed experts."""

    layers: tuple[int, ...]  # places in the model, ascending
    num_experts: int
    num_active: int  # per token
    num_weights_each: int
    num_shared_weights: int = 0  # per layer, passed by every token
    num_router_weights: int = 0

    @property
    def num_layers(self) -> int:
        return len(self.layers)

    def distinct(self, num_tokens: float) -> float:
        """Expected number of different experts that a batch uses in a layer, with independent uniform routing."""
        unused: float = (1.0 - self.num_active / self.num_experts) ** num_tokens
        return self.num_experts * (1.0 - unused)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    name: str
    hidden_size: int
    vocab_size: int
    is_tied: bool  # the output layer is the embedding
    attention: tuple[AttentionLayers, ...]
    num_dense_weights: int  # of all MLPs without experts, all layers
    experts: Experts | None
    formats: WeightFormats
    max_context: int = 0  # tokens; 0: the config does not say

    @property
    def num_layers(self) -> int:
        return sum(layers.num_layers for layers in self.attention)

    @property
    def num_dense_weights_each(self) -> float:
        """Of the MLP of one layer without experts."""
        num_dense_layers = self.num_layers - (self.experts.num_layers if self.experts else 0)
        return self.num_dense_weights / num_dense_layers if num_dense_layers else 0.0

    @property
    def num_weights(self) -> int:
        """Of the whole text model, the embedding and the output layer included."""
        embeddings = self.vocab_size * self.hidden_size * (1 if self.is_tied else 2)
        return embeddings + self._num_attention_weights + self.num_dense_weights + self._num_expert_weights(None)

    @property
    def num_active_weights(self) -> int:
        """Multiplied for one token, embedding included as published counts have it."""
        embeddings = self.vocab_size * self.hidden_size * (1 if self.is_tied else 2)
        active = self._num_expert_weights(self.experts.num_active) if self.experts else 0
        return embeddings + self._num_attention_weights + self.num_dense_weights + active

    @property
    def weight_bytes(self) -> float:
        """Of the text model as it is stored."""
        total = self.embedding_bytes + (0.0 if self.is_tied else self.head_bytes)
        total += self._num_attention_weights * self.formats.attention.bytes_per_weight
        total += self.num_dense_weights * self.formats.dense.bytes_per_weight
        if self.experts:
            moe = self.experts
            routed = moe.num_experts * moe.num_weights_each * self.formats.experts.bytes_per_weight
            shared = moe.num_shared_weights * self.formats.shared.bytes_per_weight
            router = moe.num_router_weights * WeightFormat.BF16.bytes_per_weight
            total += moe.num_layers * (routed + shared + router)
        return total

    @property
    def embedding_bytes(self) -> float:
        return self.vocab_size * self.hidden_size * self.formats.embedding.bytes_per_weight

    @property
    def head_bytes(self) -> float:
        return self.vocab_size * self.hidden_size * self.formats.head.bytes_per_weight

    def kv_bytes_per_token(self, kv_value_bytes: float = 2.0) -> float:
        """Stored for a token while it is seen by all layers: what a short sequence takes, or a handoff moves."""
        return sum(_kv_bytes(layers.cache, kv_value_bytes) for layers in self.attention)

    def growing_kv_bytes_per_token(self, kv_value_bytes: float = 2.0) -> float:
        """Of layers that keep every token."""
        return sum(_kv_bytes(layers.cache, kv_value_bytes) for layers in self.attention if not layers.cache.is_bounded)

    def sequence_bytes(self, num_tokens: int, kv_value_bytes: float = 2.0) -> float:
        """KV and states of one sequence of that length."""
        caches = [layers.cache for layers in self.attention]
        states = sum(cache.bytes_per_sequence for cache in caches)
        return states + sum(cache.most_kept(num_tokens) * _kv_bytes(cache, kv_value_bytes) for cache in caches)

    @property
    def _num_attention_weights(self) -> int:
        return sum(a.num_layers * (a.num_weights + a.num_replicated_weights) for a in self.attention)

    def _num_expert_weights(self, num_used: int | None) -> int:
        """Routed, shared and router weights of all layers, with all experts or with `num_used` of each layer."""
        if not self.experts:
            return 0
        moe = self.experts
        num_routed = (moe.num_experts if num_used is None else num_used) * moe.num_weights_each
        return moe.num_layers * (num_routed + moe.num_shared_weights + moe.num_router_weights)


def _kv_bytes(cache: KVGroup, kv_value_bytes: float) -> float:
    return cache.elements_per_token * kv_value_bytes + cache.index_bytes_per_token
