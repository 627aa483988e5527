"""`relevo bench start`: from the command to the first streamed token, and what each process has computed by then.

Owns the order: every round starts each topology in turn, asks for one token and ends it. Processor time is read from
the kernel at the first token.
"""

from __future__ import annotations

import asyncio
import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import relevo
from relevo.bench.client import OpenAIClient
from relevo.bench.peers.cold_start import FINE_POLL_S, first_token_at_ns
from relevo.bench.process_time import cpu_s_by_kind
from relevo.bench.server_process import ServerProcess, free_port, serve_command
from relevo.telemetry.progress import Progress


@dataclass(frozen=True, slots=True, kw_only=True)
class StartOptions:
    model: str | None
    topologies: Sequence[str]
    serve_flags: tuple[str, ...]
    rounds: int
    log_dir: Path


@dataclass(slots=True)
class StartCost:
    """All starts of one topology. Seconds."""

    topology: str
    first_token_s: list[float] = field(default_factory=list)
    cpu_s: dict[str, list[float]] = field(default_factory=dict)  # by kind of process; workers together

    def to_json(self) -> dict[str, Any]:
        waited_s = self.first_token_s
        return {
            "topology": self.topology,
            "first_token_s": {"median": median(waited_s), "least": min(waited_s), "most": max(waited_s)},
            "each_first_token_s": waited_s,
            "cpu_s": {kind: median(values) for kind, values in self.cpu_s.items()},
        }


def bytecode_notes(package: Path = Path(relevo.__file__).parent) -> list[str]:
    """What a start is going to do beside its own work."""
    modules = list(package.rglob("*.py"))
    lacking = sum(not Path(importlib.util.cache_from_source(str(module))).exists() for module in modules)
    if not lacking:
        return []
    return [
        f"{lacking} of {len(modules)} modules have no bytecode: where Python writes none, every process compiles them "
        f"again; `python -m compileall {package}` ends that"
    ]


async def measure_start(options: StartOptions, costs: list[StartCost], progress: Progress) -> None:
    """`costs` is filled as it goes."""
    options.log_dir.mkdir(parents=True, exist_ok=True)
    progress.begin("", options.rounds * len(options.topologies), "starts")
    for number in range(options.rounds):
        for topology in options.topologies:
            progress.rename(f"round {number + 1} of {options.rounds}: {topology}")
            waited_s, spent_s = await _start(options, topology)
            cost = next((each for each in costs if each.topology == topology), None)
            if cost is None:
                cost = StartCost(topology)
                costs.append(cost)
            cost.first_token_s.append(waited_s)
            for kind, seconds in spent_s.items():
                cost.cpu_s.setdefault(kind, []).append(seconds)
            progress.advance()


async def _start(options: StartOptions, topology: str) -> tuple[float, dict[str, float]]:
    """How long the first token took, and what was computed for it. Raises StartError."""
    port = free_port()
    command = serve_command(options.model, port, ("--topology", topology, *options.serve_flags))
    server = ServerProcess(command, port, options.log_dir / f"{topology}.log", poll_interval_s=FINE_POLL_S)
    async with server, OpenAIClient(server.url, reuse_connections=False) as client:
        at_ns = await first_token_at_ns(client, await client.pick_model(None))
        return (at_ns - server.started_at_ns) / 1e9, await asyncio.to_thread(cpu_s_by_kind, server.pid)
