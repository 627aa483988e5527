"""Which caches the backends compute attention over."""

from __future__ import annotations

from relevo.core.errors import UnsupportedModel
from relevo.core.kv import KVGroup, KVKind, KVLayout

LATENT_DTYPES = ("float16", "bfloat16", "float32")


def only_full_group(layout: KVLayout) -> KVGroup:
    """The one group of a cache of keys and values of every token. Raises UnsupportedModel for any other cache."""
    group = layout.groups[0]
    if len(layout.groups) != 1 or group.kind is not KVKind.FULL or group.key_size != group.value_size:
        groups = " and ".join(map(str, layout.groups))
        raise UnsupportedModel(f"only one group of full attention can be computed, and this model has {groups}")
    return group


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
