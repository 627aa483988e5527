"""Ray Serve keeps a Relevo server: it is deployed, watched and ended with the application.

    serve run examples.ray_serve:app model=smollm2 nodes=2

Clients ask this application where the server is (GET /), and then talk to Relevo itself: Ray carries no request.
"""

from __future__ import annotations

from typing import Any

from ray import serve

from relevo.cluster.launchers.ray import RayLauncher
from relevo.cluster.launchers.seats import HeadSeat, Room, node_seats


@serve.deployment(num_replicas=1, ray_actor_options={"num_cpus": 0}, health_check_period_s=10)
class Relevo:
    def __init__(self, model: str, nodes: int, port: int) -> None:
        self._launcher = RayLauncher(address="auto", name="relevo-serve")
        if self._launcher.is_up:  # of a replica that was killed
            self._launcher.end()
        head = HeadSeat(model=model, folder="~/.local/state/relevo/ray-serve", http_port=port)
        self._launcher.launch(head, [(seat, Room()) for seat in node_seats([("unified", nodes)])])

    def check_health(self) -> None:
        failed = [each for each in self._launcher.states() if each.state == "failed"]
        if failed:
            raise RuntimeError("; ".join(f"{each.name}: {each.reason}" for each in failed))

    def __call__(self, _request: Any) -> dict[str, Any]:
        states = self._launcher.states()
        return {"url": f"{self._launcher.url()}/v1", "seats": {each.name: each.state for each in states}}

    def __del__(self) -> None:
        self._launcher.end()


def app(arguments: dict[str, str]) -> serve.Application:
    return Relevo.bind(arguments["model"], int(arguments.get("nodes", "1")), int(arguments.get("port", "8001")))
