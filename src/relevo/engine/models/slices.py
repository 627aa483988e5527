"""How a model is cut for ranks that compute every step together (tensor parallelism).

A model is cut into a number of slices that is its own, and not that of its ranks. A slice is a decoder with a part of
the heads, of each MLP and of each expert; what its products come to is a part of a sum, and the parts are added in
float32 as one balanced binary tree. A rank has consecutive slices. So every product and every sum is the same, to the
bit, however many ranks share the tree. Source: tree-based invariant kernels (arXiv:2511.17826).

Owns the sizes and what cannot be cut. Pure; it imports no numpy: a process that only opens a model asks it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from relevo.core.errors import SettingsError, UnsupportedModel
from relevo.core.model import ExpertPlaces, ExpertRanks, ExpertsConfig, GatedDelta, ModelConfig
from relevo.policy.perf.expert_placement import in_order

SIZES = (1, 2, 4, 8)  # of a tensor group; the last one is also how many slices a model has at most


@dataclass(frozen=True, slots=True)
class Slice:
    """`config`: the model's, with the sizes that the slice has, which are those of every slice: where it has fewer of
    the model's `heads`, the rest are of zeros. Parts of the whole are numbered from 0."""

    config: ModelConfig
    number: int = 0
    num_slices: int = 1
    heads: range = range(0)  # of the model
    first_kv_head: int | None = None  # of the cache; None: the slice is the model, uncut

    @property
    def is_whole(self) -> bool:
        return self.first_kv_head is None

    @property
    def adds_biases(self) -> bool:
        """Of what is summed: once."""
        return self.number == 0


@dataclass(frozen=True, slots=True)
class Share:
    """What one rank of a tensor group computes. One rank with all slices has the same bits as many."""

    num_slices: int  # of the model
    rank: int
    size: int  # ranks, a power of two that divides num_slices
    whole_experts: bool = False  # a slice has some of the experts, not a part of each
    expert_ranks: ExpertRanks = ()  # which ranks have these; empty: in order, each once

    def slices(self, config: ModelConfig) -> tuple[Slice, ...]:
        each = self.num_slices // self.size
        return tuple(self._slice(config, number) for number in range(self.rank * each, (self.rank + 1) * each))

    def _slice(self, config: ModelConfig, number: int) -> Slice:
        count = self.num_slices
        heads, kv_heads = _heads_of(config, number, count)
        most = max(len(_heads_of(config, each, count)[0]) for each in range(count))
        sliced = replace(
            config,
            num_heads=most,
            num_kv_heads=most if config.latent is not None else len(kv_heads),
            intermediate_size=config.intermediate_size // count,
            experts=self._experts(config.experts, number) if config.experts else None,
            delta=self._delta(config.delta) if config.delta else None,
        )
        return Slice(sliced, number, count, heads, kv_heads.start)

    def _delta(self, delta: GatedDelta) -> GatedDelta:
        """Key heads, and the value heads that share them: neighbours in a slice, wherever they lie in the file."""
        keys, values = delta.num_key_heads // self.num_slices, delta.num_value_heads // self.num_slices
        files = replace(delta.files, is_tiled=delta.files.is_tiled and self.num_slices == 1)
        return replace(delta, num_key_heads=keys, num_value_heads=values, files=files)

    def _experts(self, experts: ExpertsConfig, number: int) -> ExpertsConfig:
        shared, count = experts.shared_size // self.num_slices, self.num_slices
        if self.whole_experts:
            each = count // self.size
            ranks = self.expert_ranks or len(experts.layers) * (in_order(experts.num_experts, self.size).ranks,)
            num_slices = 0 if number % each else each  # the rank's first slice has what the rank has
            places = tuple(ExpertPlaces(layer, self.rank, self.size, num_slices) for layer in ranks)
            return replace(experts, shared_size=shared, places=places)
        return replace(experts, shared_size=shared, intermediate_size=experts.intermediate_size // count)


def _heads_of(config: ModelConfig, number: int, count: int) -> tuple[range, range]:
    """The attention heads of a slice, and the heads of keys and values that they share: some of these whole, or a part
    of what shares one. As even as may be."""
    num_kv_heads = config.num_heads if config.latent is not None else config.num_kv_heads
    each = config.num_heads // num_kv_heads
    if count <= num_kv_heads:
        kv_heads = _part(range(num_kv_heads), number, count)
        return range(kv_heads.start * each, kv_heads.stop * each), kv_heads
    kv_head = next(head for head in range(num_kv_heads) if number in _part(range(count), head, num_kv_heads))
    sharing = _part(range(count), kv_head, num_kv_heads)
    own = _part(range(kv_head * each, (kv_head + 1) * each), number - sharing.start, len(sharing))
    return own, range(kv_head, kv_head + 1)


def _part(whole: range, number: int, count: int) -> range:
    """One of so many, as even as may be, in order."""
    size = len(whole)
    return range(whole.start + number * size // count, whole.start + (number + 1) * size // count)


def share_of(
    config: ModelConfig, rank: int, size: int, *, whole_experts: bool = False, expert_ranks: ExpertRanks = ()
) -> Share:
    """Raises SettingsError for a size that no model has, UnsupportedModel for one that this model does not have."""
    if size not in SIZES:
        known = ", ".join(map(str, SIZES))
        raise SettingsError(f"a tensor parallel size of {size} is not one of {known}; choose one of them")
    if whole_experts and config.experts is None:
        raise UnsupportedModel("a model without experts has none to place whole; leave out --enable-expert-parallel")
    num_slices = _num_slices(config, whole_experts)
    if size > num_slices:
        raise UnsupportedModel(_why_not(config, size, whole_experts, num_slices))
    return Share(num_slices, rank, size, whole_experts, expert_ranks)


def _num_slices(config: ModelConfig, whole_experts: bool) -> int:
    if _uncut(config) is not None:
        return 1
    return max(size for size in SIZES if not any(_obstacles(config, size, whole_experts)))


def _why_not(config: ModelConfig, size: int, whole_experts: bool, largest: int) -> str:
    if (what := _uncut(config)) is not None:
        return f"{what} is not implemented on several ranks; choose a tensor parallel size of 1"
    obstacle = next(_obstacles(config, size, whole_experts))
    return f"{size} ranks cannot share {obstacle} evenly; choose a tensor parallel size of {largest}"


def _uncut(config: ModelConfig) -> str | None:
    """A model that no size but one divides, whatever its sizes are; None: they decide."""
    if config.qk_norm and config.qk_norm_spans_heads:
        return "a model whose norms of queries and keys span all heads"
    return None


def _obstacles(config: ModelConfig, size: int, whole_experts: bool) -> Iterator[str]:
    """What so many slices cannot have equal parts of."""
    experts = config.experts
    shared_out = {}
    if experts is None or len(experts.layers) < config.num_layers:
        shared_out["columns of an MLP"] = config.intermediate_size
    if experts is not None:
        if whole_experts:
            shared_out["experts"] = experts.num_experts
        else:
            shared_out["columns of an expert"] = experts.intermediate_size
        shared_out["columns of the shared experts"] = experts.shared_size
    if config.delta is not None:
        shared_out["key heads of states"] = config.delta.num_key_heads
    yield from (f"{count} {what}" for what, count in shared_out.items() if count % size)
    heads, kv_heads = zip(*(_heads_of(config, number, size) for number in range(size)), strict=True)
    if not all(heads):
        yield f"{config.num_heads} attention heads"
    if (
        config.latent is None and len({len(each) for each in kv_heads}) > 1
    ):  # none of zeros: the cache has no place for it
        yield f"{config.num_kv_heads} key-value heads"
