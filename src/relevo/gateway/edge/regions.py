"""The regions behind an edge: their addresses, and whether each one answers.

Owns the probing. A region is down when it refuses a connection, when its /ready does not answer in time, or when it
says that it is not ready; it is up again when /ready says so. Does not know requests or sessions.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass, field

import aiohttp

log = logging.getLogger("relevo.edge")

PROBE_INTERVAL_S = 1.0  # arbitrary
PROBE_TIMEOUT_S = 2.0  # arbitrary: with the interval, an outage is noticed within about three seconds


@dataclass(slots=True)
class Region:
    name: str
    url: str  # without a slash at the end
    is_up: bool = False
    why_down: str = "not asked yet"
    went_down: asyncio.Event = field(default_factory=asyncio.Event)  # of the present time up

    def mark_up(self) -> None:
        if not self.is_up:
            self.is_up, self.why_down, self.went_down = True, "", asyncio.Event()
            log.info("region %s is up", self.name)

    def mark_down(self, reason: str) -> bool:
        """False if it was down already."""
        if not self.is_up:
            self.why_down = reason
            return False
        self.is_up, self.why_down = False, reason
        self.went_down.set()
        log.warning("region %s is down: %s", self.name, reason)
        return True


class Regions:
    def __init__(self, regions: list[Region], on_down: Callable[[str], None]) -> None:
        """`on_down` is called with a region's name each time it goes down."""
        self._regions = {region.name: region for region in regions}
        self._on_down = on_down

    @property
    def all(self) -> tuple[Region, ...]:
        return tuple(self._regions.values())

    def __getitem__(self, name: str) -> Region:
        return self._regions[name]

    def up(self) -> list[str]:
        return [region.name for region in self._regions.values() if region.is_up]

    def lost(self, name: str, reason: str) -> None:
        """A connection to it failed."""
        if self._regions[name].mark_down(reason):
            self._on_down(name)

    async def probe(self, session: aiohttp.ClientSession) -> None:
        """Ask all of them, again and again, until cancelled."""
        async with asyncio.TaskGroup() as group:
            for region in self._regions.values():
                group.create_task(self._probe(session, region))

    async def _probe(self, session: aiohttp.ClientSession, region: Region) -> None:
        while True:
            reason = await _why_not_ready(session, region.url)
            if reason is None:
                region.mark_up()
            else:
                self.lost(region.name, reason)
            await asyncio.sleep(PROBE_INTERVAL_S)


async def _why_not_ready(session: aiohttp.ClientSession, url: str) -> str | None:
    """None: it serves."""
    try:
        async with session.get(f"{url}/ready", timeout=aiohttp.ClientTimeout(total=PROBE_TIMEOUT_S)) as answer:
            if answer.status == 200:
                return None
            with contextlib.suppress(ValueError, aiohttp.ClientError):
                return str((await answer.json()).get("reason", f"/ready answers {answer.status}"))
            return f"/ready answers {answer.status}"
    except TimeoutError:
        return f"/ready did not answer within {PROBE_TIMEOUT_S:.0f} s"
    except (aiohttp.ClientError, OSError) as error:
        return f"{type(error).__name__}: {error}"
