"""Where an engine keeps KV, in the words by which workers are paired. Pure."""

from __future__ import annotations

from relevo.core.handoff import KVEndpoint, KVSite, Reach
from relevo.core.kv import KVGroup, KVLayout
from relevo.engines.spec import EngineSpec


def layout_of(spec: EngineSpec) -> KVLayout:
    """What its blocks hold is between the engines: only their size in tokens counts here."""
    return KVLayout(
        model_hash=spec.served_name or spec.engine,
        dtype="float16",
        block_size=spec.block_size,
        groups=(KVGroup.full((0,), 1, 1),),
    )


def site_of(spec: EngineSpec) -> KVSite:
    endpoint = KVEndpoint(spec.dialect, spec.url, Reach.NETWORK)
    return KVSite(box_id=spec.url, arena_id=spec.worker_id, endpoints=(endpoint,))
