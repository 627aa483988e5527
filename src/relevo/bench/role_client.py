"""A server's workers and their roles, as its operator sees and changes them over HTTP."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Any

import orjson

from relevo.client.server import OpenAIServer
from relevo.core.errors import StartError
from relevo.core.role import Role

ADMIN_KEY_VARIABLE = "RELEVO_ADMIN_KEY"
POLL_S = 0.02
ARRIVE_TIMEOUT_S = 30.0  # for a role that was given; arbitrary


class RoleClient(OpenAIServer):
    """With an admin key."""

    async def workers(self) -> list[dict[str, Any]]:
        """As /ready lists them, of a server that is not ready, too. Raises Unreachable."""
        _, body = await self.get_json("/ready")
        found = body.get("workers", []) if isinstance(body, dict) else []
        return [each for each in found if isinstance(each, dict)]

    async def roles(self) -> dict[str, str]:
        return {str(each["worker_id"]): str(each["role"]) for each in await self.workers()}

    async def ask(self, worker_id: str, role: str, reason: str) -> tuple[int, Any]:
        """Status and body of the answer. Raises Unreachable."""
        body = orjson.dumps({"role": role, "reason": reason})
        return await self.answer(self.request("POST", f"/admin/role/{worker_id}", body))

    async def give(self, wanted: Mapping[str, Role], reason: str) -> None:
        """And wait until all have them. Raises StartError if one is refused, or not there in time."""
        for worker_id, role in wanted.items():
            status, body = await self.ask(worker_id, str(role), reason)
            if status != 202:
                raise StartError(f"{self.url} did not make {worker_id} {role}: HTTP {status} {body}")
        names = {worker_id: str(role) for worker_id, role in wanted.items()}
        deadline_s = time.monotonic() + ARRIVE_TIMEOUT_S
        while not names.items() <= (await self.roles()).items():
            if time.monotonic() > deadline_s:
                raise StartError(f"{self.url}: not every worker had its role after {ARRIVE_TIMEOUT_S:.0f} s")
            await asyncio.sleep(POLL_S)
