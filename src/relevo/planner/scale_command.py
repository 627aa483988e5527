"""Runs an operator's command with the number of workers that is wanted, and asks nodes to leave before it is told of
fewer. Implements `worker_number.Scaler`.

Owns the run that is under way. When one is due is decided in `policy.scaling.scale_orders`; how a program is run, and
who lends workers, is handed in.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from relevo.core.cluster import is_of_node
from relevo.core.ports import Clock
from relevo.orchestrator.ports import WorkerStatus
from relevo.policy.scaling.scale_orders import CommandOutcome, Leave, LentNode, RunCommand, ScaleOrders

log = logging.getLogger("relevo.planner")


def _ending(status: int) -> str:
    return f"it ended with status {status}" if status > 0 else f"signal {-status} ended it"


Run = Callable[[Sequence[str], Mapping[str, str]], Awaitable[int]]


class LendingCluster(Protocol):
    def lent_nodes(self) -> tuple[LentNode, ...]:
        """That are here, in the order in which they came."""
        ...

    def drain(self, node: str, *, for_good: bool) -> bool: ...


@dataclass(slots=True, kw_only=True)
class ScaleCommand:
    """`run`: a program with these arguments and variables; returns its exit status, raises OSError where it cannot be
    started. It is cancelled when it takes longer than `timeout_s`, and then ends the program."""

    model: str
    words: tuple[str, ...]  # of the command
    timeout_s: float
    cluster: LendingCluster
    run: Run
    clock: Clock
    orders: ScaleOrders = field(default_factory=ScaleOrders)
    num_commands: Counter[str] = field(default_factory=Counter)  # by outcome
    _running: asyncio.Task[None] | None = None
    _last: str = ""  # what came of the last one, in words

    def adopt(self, number: int) -> None:
        self.orders.adopt(number)

    def tick(self, wanted: int, reason: str, workers: Sequence[WorkerStatus], now_s: float) -> None:
        num_own = sum(worker.ready and not is_of_node(worker.worker_id) for worker in workers)
        num_present = sum(worker.ready and not worker.is_leaving for worker in workers)
        act = self.orders.next(wanted, num_own, self.cluster.lent_nodes(), now_s)
        if isinstance(act, Leave):
            for node in act.nodes:
                is_asked = self.cluster.drain(node, for_good=True)
                log.info("%s: node %s is given back%s", self.model, node, "" if is_asked else ", and was not reached")
        elif act is not None:
            self._running = asyncio.create_task(self._execute(act, num_present, reason))

    async def _execute(self, command: RunCommand, num_present: int, reason: str) -> None:
        variables = {
            "SCALE_WANTED": str(command.number),
            "SCALE_PRESENT": str(num_present),
            "SCALE_REASON": reason,
            "SCALE_GIVEN_BACK": " ".join(command.given_back),
        }
        outcome = CommandOutcome.FAILED
        try:
            async with asyncio.timeout(self.timeout_s):
                status = await self.run((*self.words, str(command.number)), variables)
            outcome = CommandOutcome.DONE if status == 0 else CommandOutcome.FAILED
            self._last = "done" if status == 0 else _ending(status)
        except TimeoutError:
            outcome = CommandOutcome.TIMED_OUT
            self._last = f"it took longer than {self.timeout_s:g} s and was ended"
        except OSError as error:
            self._last = f"it cannot be started: {error.strerror or error}"
        finally:
            now_s = self.clock.now_ns() / 1e9
            self.orders.ended(command, now_s, is_done=outcome is CommandOutcome.DONE)
        self.num_commands[outcome.value] += 1
        said = f"{self.words[0]} {command.number}"
        if outcome is CommandOutcome.DONE:
            log.info("%s: %s: done", self.model, said)
        else:
            again_s = self.orders.again_in_s(now_s)
            log.warning("%s: %s: %s; tried again in %.0f s", self.model, said, self._last, again_s)

    def plan(self) -> dict[str, Any]:
        return {
            "command": self.words[0],
            "told": self.orders.told,
            "is_running": self.orders.is_running,
            "num_commands": dict(self.num_commands),
            "last": self._last,
        }

    def close(self) -> None:
        """What runs is ended."""
        if self._running is not None:
            self._running.cancel()
