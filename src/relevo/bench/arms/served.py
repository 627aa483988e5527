"""A server of one arm: started, its roles given, gone afterwards."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from relevo.bench.arms.arm import Arm
from relevo.bench.role_client import ADMIN_KEY_VARIABLE, RoleClient
from relevo.bench.server_process import ServerProcess, free_port, serve_command


@dataclass(frozen=True, slots=True)
class Served:
    process: ServerProcess
    operator: RoleClient

    @property
    def url(self) -> str:
        return self.process.url


@asynccontextmanager
async def served(arm: Arm, model: str | None, flags: tuple[str, ...], log_path: Path) -> AsyncIterator[Served]:
    """Raises StartError."""
    port, key = free_port(), secrets.token_hex(16)
    command = serve_command(model, port, (*arm.flags, *flags))
    process = ServerProcess(command, port, log_path, environment={ADMIN_KEY_VARIABLE: key})
    async with process, RoleClient(process.url, api_key=key) as operator:
        if arm.role is not None:
            workers = await operator.workers()
            await operator.give({each["worker_id"]: arm.role for each in workers}, f"the arm {arm.name}")
        yield Served(process, operator)
