"""What each rank of a worker holds when a model is split over devices, and how many tokens of cache are left.

Owns the sums per rank; where layers are cut into stages is `stages`'. How big a part is say
`ModelShape` and `KVGroup`. Ranks of one stage are alike, so a stage stands for them. Pure; all sizes in bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from relevo.core.errors import SettingsError
from relevo.core.kv import KVGroup
from relevo.policy.perf.expert_placement import check_copies
from relevo.policy.perf.memory_plan import (
    ALONE_BYTES,
    GRAPH_BYTES,
    TOGETHER_BYTES,
    MemoryLimits,
    activation_bytes,
)
from relevo.policy.perf.model_shape import AttentionLayers, ModelShape
from relevo.policy.perf.native_memory import PROCESS_BYTES, step_bytes
from relevo.policy.perf.parallelism import Parallelism
from relevo.policy.perf.stages import roomiest_stages
from relevo.policy.perf.weight_formats import WeightFormat

_ROUTER_BYTES = WeightFormat.F32.bytes_per_weight  # of a weight: choices of experts are made in float32


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryAsk:
    """What there is, and what the engine is set up for."""

    device_bytes: float  # of one device, as a process sees it
    limits: MemoryLimits  # `max_sequence_tokens`: the context that bounded layers are reserved for
    num_reserved: int = 1  # sequences of that context
    overhead_bytes: float | None = None  # of a rank, all that is neither weights nor KV; None: counted from the model
    is_native: bool = False  # the ranks compute on CPUs with the native backend


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupCache:
    """One KV group's part on a rank of a stage."""

    group: KVGroup  # with the layers of the stage only
    num_shards: int  # ranks that it is cut over
    token_bytes: float  # on a rank, of a token that is kept
    sequence_bytes: float  # on a rank, that do not depend on length

    def kept_bytes(self, num_tokens: int) -> float:
        """Of one sequence of that length."""
        return self.sequence_bytes + self.group.most_kept(num_tokens) * self.token_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class StageMemory:
    """Of each rank of one pipeline stage."""

    layers: range
    weight_bytes: float
    activation_bytes: float
    runtime_bytes: float  # contexts, libraries, graphs, buffers of collectives
    caches: tuple[GroupCache, ...]
    bounded_bytes: float  # reserved for windows, chunks and states
    free_bytes: float  # for the KV of all other layers; below 0: so much is missing

    @property
    def growing_token_bytes(self) -> float:
        return sum(each.token_bytes for each in self.caches if not each.group.is_bounded)

    @property
    def num_tokens(self) -> int:
        """That this stage alone has room for."""
        if self.free_bytes <= 0:
            return 0
        return int(self.free_bytes / self.growing_token_bytes) if self.growing_token_bytes else _NO_LIMIT

    def num_sequences(self, num_tokens: int) -> int:
        """Of that length, with nothing reserved in advance."""
        each = sum(cache.kept_bytes(num_tokens) for cache in self.caches)
        return max(0, int((self.free_bytes + self.bounded_bytes) / each)) if each else _NO_LIMIT


_NO_LIMIT = 2**62


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutMemory:
    """One way of splitting a model over its devices."""

    parallelism: Parallelism
    stages: tuple[StageMemory, ...]

    @property
    def weight_bytes(self) -> float:
        """On all devices, copies counted."""
        return self.parallelism.num_ranks * sum(stage.weight_bytes for stage in self.stages)

    @property
    def kv_bytes(self) -> float:
        """On all devices: what is left for KV, bounded layers included."""
        return self.parallelism.num_ranks * sum(max(0.0, s.free_bytes + s.bounded_bytes) for s in self.stages)

    @property
    def missing_bytes(self) -> float:
        """On the fullest rank; 0: everything fits."""
        return max(0.0, *(-stage.free_bytes for stage in self.stages))

    @property
    def num_tokens(self) -> int:
        """Of cache in the layers that keep every token, beside what is reserved for the others."""
        return min(stage.num_tokens for stage in self.stages) * self.parallelism.attention_data

    def num_sequences(self, num_tokens: int) -> int:
        """That can be held at once, each of that length."""
        return min(stage.num_sequences(num_tokens) for stage in self.stages) * self.parallelism.attention_data


def layout_memory(shape: ModelShape, parallelism: Parallelism, ask: MemoryAsk) -> LayoutMemory:
    """Stages are cut where the fullest of them has room for most tokens. Raises SettingsError for what cannot be."""
    check_split(shape, parallelism)
    overhead = _overhead(shape, parallelism, ask)
    layers = [_layer_bytes(shape, parallelism, layer) for layer in range(shape.num_layers)]
    ends = _ends(shape, parallelism)
    alone = [tuple(_caches(shape, parallelism, ask, range(layer, layer + 1))) for layer in range(shape.num_layers)]
    fixed = [size + _reserved(caches, ask) for size, caches in zip(layers, alone, strict=True)]
    token_bytes = [sum(each.token_bytes for each in caches if not each.group.is_bounded) for caches in alone]
    room = ask.device_bytes * ask.limits.utilization - sum(overhead)
    stages = []
    for number, stage in enumerate(roomiest_stages(fixed, ends, token_bytes, parallelism.pipeline, room)):
        weights = sum(layers[stage.start : stage.stop]) + (ends[0] if number == 0 else 0.0)
        weights += ends[1] if number == parallelism.pipeline - 1 else 0.0
        caches = tuple(_caches(shape, parallelism, ask, stage))
        bounded = _reserved(caches, ask)
        stages.append(
            StageMemory(
                layers=stage,
                weight_bytes=weights,
                activation_bytes=overhead[0],
                runtime_bytes=overhead[1],
                caches=caches,
                bounded_bytes=bounded,
                free_bytes=room - weights - bounded,
            )
        )
    return LayoutMemory(parallelism=parallelism, stages=tuple(stages))


def possible_layouts(shape: ModelShape, num_devices: int) -> list[Parallelism]:
    """Every way of using all devices for one worker: tensor by pipeline ranks, the cache once per tensor rank or cut
    over them."""
    found = []
    for tensor in (count for count in range(1, num_devices + 1) if num_devices % count == 0):
        for context in dict.fromkeys((1, _widest_context(shape, tensor))):
            parallelism = Parallelism(tensor=tensor, pipeline=num_devices // tensor, decode_context=context)
            try:
                check_split(shape, parallelism)
            except SettingsError:
                continue
            found.append(parallelism)
    return found


def check_split(shape: ModelShape, parallelism: Parallelism) -> None:
    """Raises SettingsError that names what does not divide."""
    tensor = parallelism.tensor
    for layers in shape.attention:
        heads = layers.cache.num_kv_heads
        if layers.num_heads % tensor:
            raise SettingsError(
                f"{layers.num_heads} attention heads cannot be divided among {tensor} tensor ranks; choose a divisor"
            )
        if heads > 1 and heads % tensor and tensor % heads:
            raise SettingsError(
                f"{heads} key/value heads cannot be divided among {tensor} tensor ranks, nor each be kept by equally "
                "many of them; choose a divisor or a multiple"
            )
    widest = _widest_context(shape, tensor)
    if widest % parallelism.decode_context:
        raise SettingsError(
            f"the cache has {widest} equal copies on {tensor} tensor ranks, which cannot be divided into "
            f"{parallelism.decode_context} parts; choose a divisor of {widest}"
        )
    if parallelism.pipeline > shape.num_layers:
        raise SettingsError(f"{shape.num_layers} layers cannot be {parallelism.pipeline} stages; choose fewer")
    _check_experts(shape, parallelism)


def _check_experts(shape: ModelShape, parallelism: Parallelism) -> None:
    num_experts = shape.experts.num_experts if shape.experts else 0
    num_redundant, num_groups = parallelism.redundant_experts, parallelism.expert
    if num_redundant and num_groups == 1:
        raise SettingsError(
            f"{num_redundant} redundant experts need ranks that hold whole experts, and more than one of them; add "
            "--ep and tensor ranks, or leave --num-redundant-experts out"
        )
    if not num_redundant and num_experts % num_groups:
        raise SettingsError(
            f"{num_experts} experts cannot be divided among {num_groups} groups of ranks; choose a divisor"
        )
    check_copies(num_experts, num_groups, num_redundant)


def _widest_context(shape: ModelShape, tensor: int) -> int:
    """Copies of the cache that tensor ranks hold, where it can be cut by heads no further."""
    growing = [layers.cache.num_kv_heads for layers in shape.attention if not layers.cache.is_bounded]
    return max(1, tensor // max(growing, default=tensor))


def _overhead(shape: ModelShape, parallelism: Parallelism, ask: MemoryAsk) -> tuple[float, float]:
    """(activations, the rest)"""
    if ask.overhead_bytes is not None:
        return 0.0, ask.overhead_bytes
    if ask.is_native:
        return step_bytes(shape, ask.limits), PROCESS_BYTES
    runtime = (TOGETHER_BYTES if parallelism.num_ranks > 1 else ALONE_BYTES) + GRAPH_BYTES
    return activation_bytes(shape, parallelism, ask.limits), runtime


def _layer_bytes(shape: ModelShape, parallelism: Parallelism, layer: int) -> float:
    """Weights of a layer on one rank."""
    formats, tensor = shape.formats, parallelism.tensor
    attention = next(each for each in shape.attention if layer in each.cache.layers)
    total = (attention.num_weights / tensor + attention.num_replicated_weights) * formats.attention.bytes_per_weight
    moe = shape.experts
    if moe is None or layer not in moe.layers:
        return total + shape.num_dense_weights_each * formats.dense.bytes_per_weight / tensor
    num_held = moe.num_experts + parallelism.redundant_experts
    routed = num_held * moe.num_weights_each * formats.experts.bytes_per_weight / parallelism.num_ranks
    shared = moe.num_shared_weights * formats.shared.bytes_per_weight / tensor
    return total + routed + shared + moe.num_router_weights * _ROUTER_BYTES


def _ends(shape: ModelShape, parallelism: Parallelism) -> tuple[float, float]:
    """What the first stage and the last hold besides: embedding, and output layer."""
    embedding = shape.embedding_bytes / parallelism.tensor
    if not shape.is_tied:
        return embedding, shape.head_bytes / parallelism.tensor
    return embedding, embedding if parallelism.pipeline > 1 else 0.0


def _caches(shape: ModelShape, parallelism: Parallelism, ask: MemoryAsk, stage: Sequence[int]) -> Iterator[GroupCache]:
    for layers in shape.attention:
        places = tuple(layer for layer in layers.cache.layers if layer in stage)
        if places:
            yield _cache(layers, places, parallelism, ask.limits)


def _cache(
    layers: AttentionLayers, places: tuple[int, ...], parallelism: Parallelism, limits: MemoryLimits
) -> GroupCache:
    group = replace(layers.cache, layers=places)
    num_shards = parallelism.kv_shards(layers)
    num_scales = group.num_layers * group.num_kv_heads * ((group.key_size > 0) + (group.value_size > 0))
    values = group.elements_per_token * limits.kv_value_bytes + num_scales * limits.kv_scale_bytes
    return GroupCache(
        group=group,
        num_shards=num_shards,
        token_bytes=values / num_shards + group.index_bytes_per_token / parallelism.decode_context,
        sequence_bytes=group.bytes_per_sequence / num_shards,
    )


def _reserved(caches: Sequence[GroupCache], ask: MemoryAsk) -> float:
    """Of bounded layers, and what one prompt keeps besides while a chunk of it is computed."""
    limits = ask.limits
    num_tokens = max(limits.max_sequence_tokens, limits.block_size)
    total = 0.0
    for cache in caches:
        if cache.group.is_bounded:
            more = min(num_tokens, cache.group.span + limits.max_step_tokens) - cache.group.most_kept(num_tokens)
            total += ask.num_reserved * cache.kept_bytes(num_tokens)
            total += max(0, more) * cache.token_bytes if cache.group.span else 0.0
    return total
