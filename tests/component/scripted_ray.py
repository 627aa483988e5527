"""A stand-in for the few calls of Ray that the launcher makes: actors live in this process, machines are a list."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest


class GetTimeoutError(Exception):
    pass


@dataclass
class Handle:
    """Of an actor. `remote()` does the call at once; `get` raises what it raised."""

    kind: type
    arguments: tuple[Any, ...]
    options: dict[str, Any]
    instance: Any = None
    num_starts: int = 0
    is_cut_off: bool = False

    def start(self) -> None:
        self.instance, self.num_starts = self.kind(*self.arguments), self.num_starts + 1

    def __getattr__(self, name: str) -> Any:
        def remote(*arguments: Any) -> Any:
            if self.is_cut_off or self.instance is None:
                return GetTimeoutError(f"{name} did not answer")
            return lambda: getattr(self.instance, name)(*arguments)

        return SimpleNamespace(remote=remote)


@dataclass
class ScriptedRay:
    machines: list[dict[str, float]]
    is_reachable: bool = True
    actors: dict[str, Handle] = field(default_factory=dict)
    groups: dict[str, SimpleNamespace] = field(default_factory=dict)
    calls: list[str] = field(default_factory=list)

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        util = self._module("ray.util", get_node_ip_address=lambda: "127.0.0.1", list_named_actors=self._list)
        self._module("ray.util.placement_group", placement_group=self._place, remove_placement_group=self._remove,
                     get_placement_group=self._get_group)  # fmt: skip
        self._module("ray.util.scheduling_strategies", PlacementGroupSchedulingStrategy=SimpleNamespace)
        self._module("ray", init=self._init, nodes=self._nodes, remote=self._remote, get=self._get, kill=self.kill,
                     get_actor=self._get_actor, util=util)  # fmt: skip
        for name in list(self._modules):
            monkeypatch.setitem(sys.modules, name, self._modules[name])

    def __post_init__(self) -> None:
        self._modules: dict[str, ModuleType] = {}

    def _module(self, name: str, **members: Any) -> ModuleType:
        made = self._modules[name] = ModuleType(name)
        vars(made).update(members)
        return made

    # ---- what is called ----------------------------------------------------------------------------------------------

    def _init(self, **_: Any) -> None:
        if not self.is_reachable:
            raise ConnectionError("Could not find any running Ray instance.")

    def _nodes(self) -> list[dict[str, Any]]:
        return [
            {
                "Alive": True,
                "NodeManagerAddress": f"10.0.0.{number}",
                "Resources": {**has, "node:x": 1.0, "memory": 1e9},
            }
            for number, has in enumerate(self.machines)
        ]

    def _place(self, bundles: list[dict[str, float]], *, strategy: str, name: str, lifetime: str | None) -> Any:
        free = [dict(machine) for machine in self.machines]
        fits = []
        for bundle in bundles:
            places = [
                machine
                for machine in free
                if all(machine.get(each, 0.0) >= amount for each, amount in bundle.items())
                and not (strategy == "STRICT_SPREAD" and any(machine is taken for taken in fits))
            ]
            if places:
                fits.append(places[0])
                for each, amount in bundle.items():
                    places[0][each] -= amount
        is_placed = len(fits) == len(bundles)
        group = SimpleNamespace(bundles=bundles, wait=lambda timeout_seconds: is_placed, lifetime=lifetime)
        self.groups[name] = group
        return group

    def _remove(self, group: Any) -> None:
        self.groups = {name: each for name, each in self.groups.items() if each is not group}

    def _get_group(self, name: str) -> Any:
        if name not in self.groups:
            raise ValueError(f"there is no group {name}")
        return self.groups[name]

    def _remote(self, kind: type) -> Any:
        def make(**options: Any) -> Any:
            def remote(*arguments: Any) -> Handle:
                handle = self.actors[options["name"]] = Handle(kind, arguments, options)
                handle.start()
                return handle

            return SimpleNamespace(remote=remote)

        return SimpleNamespace(options=make)

    def _get(self, answer: Any, timeout: float | None = None) -> Any:
        assert timeout is not None, "every wait has a deadline"
        if isinstance(answer, Exception):
            raise answer
        return answer()

    def kill(self, handle: Handle, *, no_restart: bool) -> None:
        assert no_restart
        self.actors = {name: each for name, each in self.actors.items() if each is not handle}

    def _get_actor(self, name: str, namespace: str) -> Handle:
        if name not in self.actors or self.actors[name].options["namespace"] != namespace:
            raise ValueError(f"there is no actor {name}")
        return self.actors[name]

    def _list(self, all_namespaces: bool) -> list[dict[str, str]]:
        return [{"name": name, "namespace": each.options["namespace"]} for name, each in self.actors.items()]
