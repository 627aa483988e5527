"""Tokens per KV block of the workers of each role: those that decode may have another block size than the others."""

from __future__ import annotations

from dataclasses import replace

from relevo.core.errors import SettingsError
from relevo.core.kv import KVLayout
from relevo.policy.host.topology import Topology
from relevo.settings import Settings


def layouts_of_roles(settings: Settings, topology: Topology, layout: KVLayout, is_shared: bool) -> dict[str, KVLayout]:
    """By role. `layout`: of --block-size; `is_shared`: the workers map one arena. Raises SettingsError."""
    roles = {role for _, role in topology.worker_roles()}
    size = settings.decode_block_size
    if size is None or size == layout.block_size:
        return dict.fromkeys(roles, layout)
    asked = f"--decode-block-size {size} beside --block-size {layout.block_size}"
    if "decode" not in roles:
        raise SettingsError(
            f"{asked} is for workers that only decode, and the topology {topology} has none here; use "
            f"--block-size {size} for all, or a topology such as 1p1d"
        )
    if is_shared:
        raise SettingsError(f"{asked}: blocks in shared memory have one size; use --kv-transport tcp")
    if not layout.can_be_cut:
        raise SettingsError(
            f"{asked}: the blocks of this model cannot be cut from one size to the other; use --block-size {size} for "
            "all"
        )
    return {role: replace(layout, block_size=size) if role == "decode" else layout for role in roles}
