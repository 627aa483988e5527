"""A world in which roles follow the traffic: the demand window of a live gateway before its gateway, and ticks.

Owns when a tick is, and the first parts of what a planner needs: the window, roles that can be given, what ended. What
is done at a tick is a rule's: `sim.day.rules` has some. One gateway, as where a planner runs live.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from relevo.core.ids import RequestId, WorkerId
from relevo.core.request import EngineRequest
from relevo.core.role import Role
from relevo.orchestrator.ports import EngineStatus, OutputSink, RequestStarter, StartedRequest
from relevo.planner.window import DemandWindow
from relevo.sim.clients import Client
from relevo.sim.config import WorldConfig
from relevo.sim.gateway import SimGateway
from relevo.sim.kernel import seconds
from relevo.sim.results import RequestOutcome
from relevo.sim.world import World
from relevo.telemetry.latency import RequestRecord, Slo
from relevo.workload.requests import Workload


class RoleWorld(World):
    def __init__(
        self,
        config: WorldConfig,
        workload: Workload,
        slo: Slo,
        *,
        tick_s: float = 5.0,
        window_s: float = 60.0,
    ) -> None:
        super().__init__(config, workload, on_end=self._note_end)
        (gateway,) = self.gateways.values()
        self.window = DemandWindow(_Generator(gateway, self._door), self.kernel, slo, window_s)
        self._door = self.window
        self._tick_ns = seconds(tick_s)
        self.on_tick: Callable[[], None] = lambda: None
        self.kernel.call_at(self.traffic_at_ns + self._tick_ns, self._tick)

    @property
    def now_s(self) -> float:
        """Of the workload's clock."""
        return (self.kernel.now_ns() - self.traffic_at_ns) / 1e9

    def _tick(self) -> None:
        if not self._num_to_come and not self.clients:
            return  # the world may end
        self.quiet.catch_up()
        self.on_tick()
        self.kernel.call_after(self._tick_ns, self._tick)

    def _note_end(self, client: Client) -> None:
        self.window.finished(_record(client))


@dataclass(frozen=True, slots=True)
class _Generator:
    """Implements orchestrator.ports.TokenGenerator."""

    gateway: SimGateway
    door: RequestStarter

    def start(self, request: EngineRequest, sink: OutputSink) -> StartedRequest:
        return self.door.start(request, sink)

    def status(self) -> EngineStatus:
        return self.gateway.dispatcher.status()

    def drain(self, worker_id: str) -> bool:
        return self.gateway.dispatcher.drain(worker_id)

    def set_roles(self, roles: Mapping[str, Role], reason: str) -> None:
        self.gateway.dispatcher.set_roles({WorkerId(worker_id): role for worker_id, role in roles.items()}, reason)


def _record(client: Client) -> RequestRecord:
    """As the HTTP side makes one: who is turned away has failed."""
    result = client.result
    has_finished, has_left = (result.outcome is each for each in (RequestOutcome.FINISHED, RequestOutcome.ABORTED))
    return RequestRecord(
        request_id=RequestId(f"r{result.row}"),
        model="model",
        times=result.times,
        num_prompt_tokens=result.num_prompt_tokens,
        num_cached_tokens=result.num_cached_tokens,
        num_output_tokens=result.num_output_tokens,
        num_longest_output_tokens=result.num_output_tokens,
        n=1,
        max_tokens=client.row.num_output_tokens,
        finish_reason="length",
        outcome="finished" if has_finished else "aborted" if has_left else "failed",
    )
