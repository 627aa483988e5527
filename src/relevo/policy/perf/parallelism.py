"""How a worker's model is spread over its devices, and how much of each part one device holds.

Tensor parallelism divides attention by heads, attention data parallelism gives each rank requests of its own, expert
parallelism gives ranks whole experts, pipeline parallelism gives stages layers. Decode context parallelism cuts the
tokens of a cache over tensor ranks that would otherwise hold copies of it. The ranks of a stage are tensor times
attention-data ranks; its experts are divided among all of them.
"""

from __future__ import annotations

from dataclasses import dataclass

from relevo.core.errors import SettingsError
from relevo.policy.perf.model_shape import AttentionLayers


@dataclass(frozen=True, slots=True, kw_only=True)
class Parallelism:
    tensor: int = 1  # ranks that divide attention heads among them
    attention_data: int = 1  # groups of such ranks that hold requests of their own
    expert: int = 1  # groups of ranks that hold whole experts of their own
    pipeline: int = 1  # stages
    decode_context: int = 1  # tensor ranks over which the tokens of a head's cache are divided
    redundant_experts: int = 0  # of a layer, beside one of each

    def __post_init__(self) -> None:
        for name in ("tensor", "attention_data", "expert", "pipeline", "decode_context"):
            if getattr(self, name) < 1:
                raise SettingsError(f"{name} parallelism is {getattr(self, name)}; it is 1 or more")
        if self.num_ranks % self.expert:
            raise SettingsError(
                f"{self.num_ranks} ranks ({self.tensor} tensor x {self.attention_data} attention data) cannot be "
                f"{self.expert} equal groups of experts; choose a divisor"
            )

    @property
    def num_ranks(self) -> int:
        """Of one stage."""
        return self.tensor * self.attention_data

    @property
    def num_devices(self) -> int:
        return self.num_ranks * self.pipeline

    def kv_shards(self, layers: AttentionLayers) -> int:
        """Parts into which tensor ranks cut KV; ranks above it hold copies. A latent is cut by tokens only, and what is
        bounded by heads only."""
        by_heads = min(self.tensor, layers.cache.num_kv_heads)
        return by_heads if layers.cache.is_bounded else by_heads * self.decode_context
