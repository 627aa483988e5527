"""What a server still holds once no request is under way: blocks of the KV pool, and requests."""

from __future__ import annotations

import asyncio
import time

from relevo.client.prometheus_text import samples
from relevo.client.server import OpenAIServer

IDLE_TIMEOUT_S = 60.0  # after the last request nothing may be in flight for longer


async def left_in_use(client: OpenAIServer, timeout_s: float = IDLE_TIMEOUT_S) -> str:
    """In words, once nothing is, or when the time is over; empty if nothing is."""
    deadline_s = time.monotonic() + timeout_s
    while True:
        left = _in_use(await client.metrics_text())
        if not left or time.monotonic() > deadline_s:
            return left
        await asyncio.sleep(0.2)


def _in_use(metrics: str) -> str:
    held = [
        sample
        for sample in samples(metrics)
        if (sample.name == "relevo:blocks" and sample.labels.get("state") in ("held", "quarantined"))
        or sample.name == "relevo:requests_in_flight"
    ]
    return "; ".join(f"{each.name}{{{each.labels_text}}} {each.value:g}" for each in held if each.value)
