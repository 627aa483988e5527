"""Seats on the machines of a Ray cluster: a placement group, and an actor per seat that keeps a supervisor there.

Ray places, and starts an actor again when its process or its machine is lost; the supervisor in it joins under the next
node epoch. Calls of Ray are few and small: where the head is, a join token per start, how it goes. Requests, tokens and
KV never pass through it. Imports Ray when it is made, not before. Source: Ray's "Placement Groups", "Actor fault
tolerance".
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from relevo.cluster.launchers.keepers import HeadKeeper, NodeKeeper
from relevo.cluster.launchers.seats import HEAD, HeadPlace, HeadSeat, Invitation, NodeSeat, Room, SeatState
from relevo.core.errors import SettingsError
from relevo.core.urls import server_url

_ANSWER_S = 10.0  # of an actor that is there
_HEAD_CPUS = 1.0  # of its machine, beside those of the node that it shares it with


class RayLauncher:
    """Implements cluster.launchers.seats.Launcher. `name`: of this server in the cluster, and of Ray's namespace.
    `is_detached`: it goes on when this process ends."""

    def __init__(
        self,
        *,
        address: str,
        name: str,
        strategy: str = "STRICT_SPREAD",
        place_s: float = 60.0,
        is_detached: bool = False,
    ) -> None:
        self._ray = _connected(address, name)
        self._name, self._strategy, self._place_s, self._is_detached = name, strategy, place_s, is_detached
        self._group: Any = None
        self._actors: dict[str, Any] = {}
        self._url = ""

    def launch(self, head: HeadSeat, nodes: Sequence[tuple[NodeSeat, Room]]) -> None:
        if self._found(HEAD) is not None:
            raise SettingsError(
                f"{self._name} is up on this Ray cluster; end it with `relevo ray down`, or give --name"
            )
        self._check_room([room for _, room in nodes])
        self._group = self._placed([room for _, room in nodes])
        self._actors[HEAD] = self._actor(_HeadActor, HEAD, 0, Room(num_cpus=_HEAD_CPUS), head)
        for index, (seat, room) in enumerate(nodes):
            self._actors[seat.name] = self._actor(_NodeActor, seat.name, index, room, seat, self._name)
        self._url = self._ask(HEAD, "url", place_s=self._place_s)

    def url(self) -> str:
        return self._url

    def states(self) -> list[SeatState]:
        return [self._state(name) for name in self._actors]

    def end(self) -> None:
        """Also of a server that another process has brought up: its actors are found by their names."""
        names = [HEAD, *(name for name in self._names() if name != HEAD)]
        for name in reversed(names):
            actor = self._actors.get(name) or self._found(name)
            if actor is None:
                continue
            with contextlib.suppress(Exception):  # Ray's own, of an actor that is gone
                self._ray.get(actor.end.remote(), timeout=120.0)
            with contextlib.suppress(Exception):
                self._ray.kill(actor, no_restart=True)
        group = self._group or self._found_group()
        if group is not None:
            _util("placement_group").remove_placement_group(group)
        self._actors.clear()

    @property
    def is_up(self) -> bool:
        return self._found(HEAD) is not None

    # ---- placing -----------------------------------------------------------------------------------------------------

    def _check_room(self, rooms: Sequence[Room]) -> None:
        """What cannot come true is said at once, not after a wait."""
        alive = [node for node in self._ray.nodes() if node.get("Alive")]
        if self._strategy == "STRICT_SPREAD" and len(alive) < len(rooms):
            raise SettingsError(
                f"{len(rooms)} nodes are asked for, each on a machine of its own, and this Ray cluster has "
                f"{len(alive)}; add machines with `ray start --address=...`, ask for fewer, or give --strategy SPREAD"
            )

    def _placed(self, rooms: Sequence[Room]) -> Any:
        bundles = [_bundle(room, has_head=index == 0) for index, room in enumerate(rooms)]
        group = _util("placement_group").placement_group(
            bundles, strategy=self._strategy, name=self._name, lifetime="detached" if self._is_detached else None
        )
        if group.wait(timeout_seconds=self._place_s):
            return group
        _util("placement_group").remove_placement_group(group)
        asked = "; ".join(", ".join(f"{name} {amount:g}" for name, amount in bundle.items()) for bundle in bundles)
        has = "; ".join(_resources(node) for node in self._ray.nodes() if node.get("Alive"))
        raise SettingsError(
            f"Ray found no place within {self._place_s:g} s ({self._strategy}): asked is {asked}, its machines have "
            f"{has}; "
            "give --cpus and --gpus that they have free, or add machines"
        )

    def _actor(self, kind: type, name: str, index: int, room: Room, *arguments: Any) -> Any:
        strategy = _util("scheduling_strategies").PlacementGroupSchedulingStrategy(
            placement_group=self._group, placement_group_bundle_index=index
        )
        options = {
            "name": name,
            "namespace": self._name,
            "num_cpus": room.num_cpus,
            "num_gpus": room.num_gpus,
            "resources": room.resources or None,
            "scheduling_strategy": strategy,
            "max_restarts": -1,
            "max_concurrency": 8,  # it answers while it ends
            "lifetime": "detached" if self._is_detached else None,
        }
        return self._ray.remote(kind).options(**options).remote(*arguments)

    # ---- asking ------------------------------------------------------------------------------------------------------

    def _ask(self, name: str, method: str, *, place_s: float = _ANSWER_S) -> Any:
        try:
            return self._ray.get(getattr(self._actors[name], method).remote(), timeout=place_s)
        except Exception as error:  # Ray's own, of many kinds
            raise SettingsError(f"{name} cannot be started by Ray: {_first_line(error)}") from error

    def _state(self, name: str) -> SeatState:
        try:
            state: SeatState = self._ray.get(self._actors[name].state.remote(), timeout=_ANSWER_S)
        except Exception as error:  # it is being started again, or its machine does not answer
            return SeatState(name=name, state="waiting", host="", reason=_first_line(error))
        return state

    def _found(self, name: str) -> Any:
        try:
            return self._ray.get_actor(name, namespace=self._name)
        except ValueError:
            return None

    def _names(self) -> list[str]:
        if self._actors:
            return list(self._actors)
        named = import_module("ray.util").list_named_actors(all_namespaces=True)
        return [each["name"] for each in named if each["namespace"] == self._name]

    def _found_group(self) -> Any:
        try:
            return _util("placement_group").get_placement_group(self._name)
        except ValueError:
            return None


# ---- in Ray's processes ----------------------------------------------------------------------------------------------


class _HeadActor(HeadKeeper):
    def __init__(self, seat: HeadSeat) -> None:
        host = _own_address()
        super().__init__(seat, host)
        self._url = server_url(host, seat.http_port)

    def url(self) -> str:
        return self._url


class _NodeActor(NodeKeeper):
    def __init__(self, seat: NodeSeat, server: str) -> None:
        super().__init__(seat, _own_address(), _HeadByName(server))


class _HeadByName:
    """Implements cluster.launchers.keepers.AsksHead. By its name: it may be another incarnation, on another machine."""

    def __init__(self, server: str) -> None:
        self._server = server

    def invite(self, name: str) -> Invitation | None:
        found: Invitation | None = self._ask("invite", name)
        return found

    def place(self) -> HeadPlace | None:
        found: HeadPlace | None = self._ask("place")
        return found

    def _ask(self, method: str, *arguments: str) -> Any:
        ray = import_module("ray")
        try:
            head = ray.get_actor(HEAD, namespace=self._server)
            return ray.get(getattr(head, method).remote(*arguments), timeout=_ANSWER_S)
        except Exception:  # Ray's own: it is not there yet, is being started again, or the link to it is cut
            return None


def _own_address() -> str:
    return str(_util("").get_node_ip_address())


# ---- Ray itself ------------------------------------------------------------------------------------------------------


def _connected(address: str, name: str) -> Any:
    """Raises SettingsError."""
    try:
        ray = import_module("ray")
    except ImportError as error:
        raise SettingsError("relevo ray needs Ray, which is not installed; pip install 'relevo[ray]'") from error
    try:
        ray.init(address=address, namespace=name, log_to_driver=True, ignore_reinit_error=True)
    except Exception as error:  # ConnectionError, and more of Ray's own
        raise SettingsError(
            f"no Ray cluster answers at {address} ({_first_line(error)}); start one with `ray start --head`, or give "
            "--address"
        ) from error
    return ray


def _util(name: str) -> Any:
    return import_module(f"ray.util.{name}" if name else "ray.util")


def _bundle(room: Room, *, has_head: bool) -> dict[str, float]:
    cpus = room.num_cpus + (_HEAD_CPUS if has_head else 0.0)
    amounts = {"CPU": cpus, "GPU": room.num_gpus, **room.resources}
    return {name: amount for name, amount in amounts.items() if amount > 0}


def _resources(node: dict[str, Any]) -> str:
    unnamed = ("node:", "memory", "object")
    told = {name: amount for name, amount in node.get("Resources", {}).items() if not name.startswith(unnamed)}
    return f"{node.get('NodeManagerAddress', '?')}: " + ", ".join(f"{name} {told[name]:g}" for name in sorted(told))


def _first_line(error: Exception) -> str:
    text = next((line.strip() for line in reversed(str(error).splitlines()) if line.strip()), type(error).__name__)
    return text[:300]
