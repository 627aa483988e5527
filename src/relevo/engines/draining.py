"""When engines that are to end have nothing left to do. Gateways of other boxes were told to send nothing new."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from relevo.client.http import CLIENT_ERRORS
from relevo.core.errors import RelevoError
from relevo.engines.client import EngineClient
from relevo.engines.opening import PROTOCOLS
from relevo.engines.spec import EngineSpec, key_of

LOOK_S = 0.5  # arbitrary
_NUM_LOOKS = 4  # in a row: what gateways sent before they were told is there by then


async def idle(specs: Sequence[EngineSpec]) -> None:
    """Returns when none of them runs anything; one that does not answer has nothing."""
    await asyncio.gather(*map(_idle, specs))


async def _idle(spec: EngineSpec) -> None:
    num_idle = 0
    async with EngineClient(spec.url, PROTOCOLS[spec.engine], key_of(spec)) as client:
        while num_idle < _NUM_LOOKS:
            try:
                load = await client.load()
                num_idle = 0 if load.num_running or load.num_waiting else num_idle + 1
            except (*CLIENT_ERRORS, RelevoError):
                num_idle += 1
            await asyncio.sleep(LOOK_S)
