"""Which caches the backends compute attention over, and where each layer lies in them."""

from __future__ import annotations

from typing import NamedTuple

from relevo.core.errors import UnsupportedModel
from relevo.core.kv import KVGroup, KVKind, KVLayout

LATENT_DTYPES = ("float16", "bfloat16", "float32")
_OF_TOKENS = (KVKind.FULL, KVKind.WINDOW, KVKind.CHUNK)


def only_full_group(layout: KVLayout) -> KVGroup:
    """The one group of a cache of keys and values of every token. Raises UnsupportedModel for any other cache."""
    group = layout.groups[0]
    if len(layout.groups) != 1 or group.kind is not KVKind.FULL or group.key_size != group.value_size:
        groups = " and ".join(map(str, layout.groups))
        raise UnsupportedModel(f"only one group of full attention can be computed, and this model has {groups}")
    return group


def num_state_groups(layout: KVLayout) -> int:
    """They are behind the others."""
    return sum(group.kind is KVKind.STATE for group in layout.groups)


def state_groups(layout: KVLayout) -> tuple[KVGroup, ...]:
    return layout.groups[len(layout.groups) - num_state_groups(layout) :]


def token_groups(layout: KVLayout) -> tuple[KVGroup, ...]:
    """The groups of a cache of keys and values, all of one shape; groups of states may be behind them. Raises
    UnsupportedModel for any other cache."""
    first, groups = layout.groups[0], layout.groups[: len(layout.groups) - num_state_groups(layout)]
    shapes = {(group.num_kv_heads, group.key_size, group.value_size) for group in groups}
    are_keys = all(group.kind in _OF_TOKENS and not group.index_bytes for group in groups)
    if first.is_bounded or not are_keys or len(shapes) > 1 or first.key_size != first.value_size:
        names = " and ".join(map(str, layout.groups))
        raise UnsupportedModel(
            "only full attention, with windows or chunks of the same heads beside it, and states behind them, can be "
            f"computed, and this model has {names}"
        )
    return groups


class LayerPlace(NamedTuple):
    group: int  # place among the layout's KV groups
    place: int  # among the group's layers, as they lie in its blocks


def layer_places(groups: tuple[KVGroup, ...]) -> dict[int, LayerPlace]:
    """Of every layer. Raises UnsupportedModel where groups share one."""
    places = {
        layer: LayerPlace(index, place)
        for index, group in enumerate(groups)
        for place, layer in enumerate(group.layers)
    }
    if len(places) < sum(group.num_layers for group in groups):
        raise UnsupportedModel(f"a layer is in one KV group, and in two of {' and '.join(map(str, groups))}")
    return places


def latent_group(layout: KVLayout) -> KVGroup | None:
    """The one group of a cache of latents; None: it is no such cache. Raises UnsupportedModel for integers, whose one
    scale per token would have to do for a latent and a rotated key of other sizes."""
    group = layout.groups[0]
    if len(layout.groups) != 1 or group.kind is not KVKind.LATENT or group.index_bytes:
        return None
    if layout.dtype not in LATENT_DTYPES:
        known = ", ".join(LATENT_DTYPES)
        raise UnsupportedModel(
            f"a cache of latents in {layout.dtype} is not implemented; choose one of {known} with --kv-cache-dtype"
        )
    return group
