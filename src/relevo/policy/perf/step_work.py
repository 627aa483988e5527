"""What one device has to read, multiply and send for a step: a model's shape on a device under a parallelism.

Weights are read once per step, of experts those that the batch is expected to use, spread evenly over the ranks
whether they hold whole experts or slices (measured steps show no busiest rank). KV is read once per row; layers with a
window, a chunk or sparse attention read no further than that. Sums of the step stand for its rows: where a layer stops
reading, the rows of one step are taken to be of equal length. Stages of a pipeline follow one another, so a step passes
all layers whichever device holds them.
"""

from __future__ import annotations

from math import ceil

from relevo.core.kv import KVKind
from relevo.policy.perf.devices import Device
from relevo.policy.perf.engine_constants import StepWork
from relevo.policy.perf.model_shape import (
    GROUPED_LAUNCHES,
    MLP_LAUNCHES,
    AttentionLayers,
    Experts,
    ModelShape,
)
from relevo.policy.perf.parallelism import Parallelism
from relevo.policy.perf.step_time import StepShape
from relevo.policy.perf.weight_formats import WeightFormat

_ACTIVATION_BYTES = 2.0  # bfloat16 between layers
_DISPATCH_BYTES = 1.0 + 2.0  # per value of a token sent to an expert (8 bits) and back (bfloat16)


class ReadCost:
    """Of decode rows in layers that are alike: seconds at the ceilings for a token that a row reads."""

    __slots__ = ("max_span", "product_s", "read_s")

    def __init__(self, read_s: float, product_s: float, max_span: int | None) -> None:
        self.read_s, self.product_s, self.max_span = read_s, product_s, max_span

    def num_read(self, num_kv_tokens: float) -> float:
        """Tokens of one row."""
        return num_kv_tokens if self.max_span is None else min(num_kv_tokens, self.max_span)


class DeviceWork:
    """`work(step)` of the busiest device. `kv_value_bytes`: 2 for bfloat16, 1 for fp8. `whole_prompts`: a chunk is
    computed on one attention rank, so that few of them leave ranks idle; otherwise they are spread evenly."""

    def __init__(
        self,
        shape: ModelShape,
        device: Device,
        parallelism: Parallelism,
        kv_value_bytes: float = 2.0,
        *,
        whole_prompts: bool = False,
    ) -> None:
        self.shape, self.device, self.parallelism = shape, device, parallelism
        self._whole_prompts = whole_prompts
        self.reads = _read_costs(shape, device, parallelism, kv_value_bytes)
        self._read_s = 1.0 / device.read_bytes_per_s
        self._set_dense_costs()
        self._set_links()
        launches = (a.num_layers * (a.num_launches + MLP_LAUNCHES) for a in shape.attention)
        self._num_plain_layers = sum(launches) / (GROUPED_LAUNCHES + MLP_LAUNCHES)
        states = (a.cache.bytes_per_sequence / parallelism.kv_shards(a) for a in shape.attention)
        self._row_state_s = 2 * sum(states) * self._read_s  # read and written

    def num_local_rows(self, num_rows: float) -> float:
        """On the rank with most requests."""
        return ceil(num_rows / self.parallelism.attention_data)

    def work(self, step: StepShape) -> StepWork:
        num_rows = self.num_local_rows(step.num_decode_rows)
        fixed = self.fixed_work(step)
        if not num_rows:
            return fixed
        context = step.num_decode_kv_tokens / step.num_decode_rows
        reads = [(cost, num_rows * cost.num_read(context)) for cost in self.reads]
        return fixed._replace(
            parts=fixed.parts + tuple((cost.read_s * number, cost.product_s * number) for cost, number in reads)
        )

    def fixed_work(self, step: StepShape) -> StepWork:
        """All but what decode rows read of their KV."""
        share = self._prefill_share(step.num_prefill_rows)
        num_rows = self.num_local_rows(step.num_decode_rows) + step.num_prefill_rows * share
        num_tokens = self.num_local_rows(step.num_decode_rows) + step.num_prefill_tokens * share
        products_s = num_tokens * self._token_product_s + num_rows * self._head_product_s
        parts = [(self._weight_read_s, products_s)]
        if self._row_state_s:
            parts.append((num_rows * self._row_state_s, 0.0))
        if step.num_prefill_tokens:
            parts.append((0.0, share * self._prefill_attention_s(step)))
        return StepWork(
            parts=tuple(parts),
            experts=self._expert_part(self.shape.experts, step.num_tokens) if self.shape.experts else (0.0, 0.0),
            num_expert_layers=self.shape.experts.num_layers if self.shape.experts else 0,
            link_s=num_tokens * self._token_link_s,
            num_layers=self._num_plain_layers,
            num_collectives=self._num_collectives,
            num_rows=num_rows,
        )

    def _prefill_share(self, num_chunks: int) -> float:
        """Of a step's prompt tokens, on the rank with most of them."""
        num_ranks = self.parallelism.attention_data
        if not self._whole_prompts or num_ranks == 1 or not num_chunks:
            return 1.0 / num_ranks
        return ceil(num_chunks / num_ranks) / num_chunks

    def _set_dense_costs(self) -> None:
        """What is the same for every token: attention projections, plain MLPs, shared experts, the output layer."""
        shape, device, tensor = self.shape, self.device, self.parallelism.tensor
        weights: list[tuple[float, WeightFormat]] = [
            (a.num_layers * (a.num_weights / tensor + a.num_replicated_weights), shape.formats.attention)
            for a in shape.attention
        ]
        weights.append((shape.num_dense_weights / tensor, shape.formats.dense))
        if shape.experts:
            shared = shape.experts.num_layers * shape.experts.num_shared_weights
            weights.append((shared / tensor, shape.formats.shared))
            weights.append((shape.experts.num_layers * shape.experts.num_router_weights, WeightFormat.BF16))
        num_bytes = sum(number * stored.bytes_per_weight for number, stored in weights)
        self._weight_read_s = (num_bytes + shape.head_bytes / tensor) * self._read_s
        self._token_product_s = sum(2 * number / device.flops(stored) for number, stored in weights)
        head = shape.vocab_size * shape.hidden_size / tensor
        self._head_product_s = 2 * head / device.flops(shape.formats.head)

    def _set_links(self) -> None:
        """Two sums over tensor ranks per layer; with requests of its own a rank sends tokens to experts and back."""
        shape, spread = self.shape, self.parallelism
        is_near = spread.num_ranks <= self.device.num_link_devices
        bytes_per_s = self.device.link_bytes_per_s if is_near else self.device.network_bytes_per_s
        num_dispatches = shape.experts.num_layers if shape.experts and spread.attention_data > 1 else 0
        num_sums = (2 * shape.num_layers - num_dispatches) if spread.tensor > 1 else 0
        self._num_collectives = num_sums + 2 * num_dispatches
        num_ways = 1 if self.device.sums_in_switch else 2  # otherwise scattered and gathered
        sum_bytes = num_sums * num_ways * (1 - 1 / spread.tensor) * _ACTIVATION_BYTES
        num_sent = min(shape.experts.num_active, spread.expert) if shape.experts else 0
        dispatch_bytes = num_dispatches * num_sent * (1 - 1 / spread.num_ranks) * _DISPATCH_BYTES
        self._token_link_s = (sum_bytes + dispatch_bytes) * shape.hidden_size / bytes_per_s

    def _expert_part(self, experts: Experts, num_tokens: int) -> tuple[float, float]:
        """Routed experts: distinct ones are read, every token multiplies its own."""
        stored = self.shape.formats.experts
        num_weights = experts.num_layers * experts.num_weights_each / self.parallelism.num_ranks
        num_passes = num_tokens * experts.num_active
        return (
            experts.distinct(num_tokens) * num_weights * stored.bytes_per_weight * self._read_s,
            num_passes * 2 * num_weights / self.device.flops(stored),
        )

    def _prefill_attention_s(self, step: StepShape) -> float:
        num_seen = step.num_prefill_pairs / step.num_prefill_tokens  # by a token, in the mean
        products = 0.0
        for layers in self.shape.attention:
            span = min(num_seen, layers.max_span) if layers.max_span else num_seen
            pairs = layers.products_per_prefill_pair * span + layers.index_products_per_pair * num_seen
            products += layers.num_layers * step.num_prefill_tokens * pairs
        return 2 * products / self.parallelism.tensor / self.device.bf16_flops


def _read_costs(
    shape: ModelShape, device: Device, parallelism: Parallelism, kv_value_bytes: float
) -> tuple[ReadCost, ...]:
    costs = []
    for layers in shape.attention:
        if layers.cache.kind is KVKind.STATE:
            continue
        num_bytes = layers.cache.elements_per_token * kv_value_bytes / parallelism.kv_shards(layers)
        products = layers.num_layers * layers.products_per_decode_pair / parallelism.tensor
        costs.append(_read_cost(device, num_bytes, products, layers.max_span))
        if layers.cache.index_bytes:
            costs.append(_index_cost(device, layers))
    return tuple(costs)


def _read_cost(device: Device, num_bytes: float, products: float, max_span: int | None) -> ReadCost:
    return ReadCost(num_bytes / device.read_bytes_per_s, 2 * products / device.bf16_flops, max_span)


def _index_cost(device: Device, layers: AttentionLayers) -> ReadCost:
    """Of a sparse indexer, which every rank runs whole over all tokens."""
    products = layers.num_layers * layers.index_products_per_pair
    return _read_cost(device, layers.cache.index_bytes_per_token, products, None)
