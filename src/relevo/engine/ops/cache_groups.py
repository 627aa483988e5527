"""Which caches the backends compute attention over."""

from __future__ import annotations

from relevo.core.errors import UnsupportedModel
from relevo.core.kv import KVGroup, KVKind, KVLayout


def only_full_group(layout: KVLayout) -> KVGroup:
    """The one group of a cache of keys and values of every token. Raises UnsupportedModel for any other cache."""
    group = layout.groups[0]
    if len(layout.groups) != 1 or group.kind is not KVKind.FULL or group.key_size != group.value_size:
        groups = " and ".join(map(str, layout.groups))
        raise UnsupportedModel(f"only one group of full attention can be computed, and this model has {groups}")
    return group
