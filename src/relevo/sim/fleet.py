"""What a person writes of the machines to simulate: `8p8d`, `unified`, `16u`, `hybrid`, `4h`, and settings that differ.

    8p8d,tp=2,decode.device=a100

is eight prefill and eight decode workers of two devices each, the decode workers on A100. Pure; knows no model.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from relevo.core.errors import SettingsError
from relevo.policy.host.topology import MAX_WORKERS, Topology, parse_topology

_UNIFIED = re.compile(r"([0-9]+)u")
ROLES = ("prefill", "decode", "unified", "hybrid")


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """One worker's devices and limits. None: follows from the model, the device or the trace."""

    device: str = ""  # a name of policy.perf.devices; needed unless step costs are given
    tp: int = 1  # tensor parallel ranks
    dp: int = 1  # attention data parallel groups
    ep: int = 1  # expert parallel groups
    pp: int = 1  # pipeline stages
    kv_blocks: int | None = None
    batched_tokens: int = 8192  # of one step
    prefill_tokens: int = 2048  # of one step while others decode
    running: int = 256  # requests
    price: float | None = None  # of one device, an hour

    @property
    def num_devices(self) -> int:
        return self.tp * self.dp * self.pp


@dataclass(frozen=True, slots=True)
class Pool:
    role: str
    num_workers: int
    machine: Machine


@dataclass(frozen=True, slots=True)
class Fleet:
    label: str  # as it was written
    pools: tuple[Pool, ...]

    @property
    def is_split(self) -> bool:
        """KV moves between workers."""
        return any(pool.role in ("decode", "hybrid") for pool in self.pools)


def parse_fleet(text: str, usual: Machine) -> Fleet:
    """`usual` with what the text changes. Raises SettingsError that says what to write."""
    words = [word.strip() for word in text.split(",")]
    topology = _topology(words[0])
    numbers = dict(zip(ROLES, _numbers(topology), strict=True))
    machines = dict.fromkeys(ROLES, usual)
    for word in words[1:]:
        key, equals, value = word.partition("=")
        role, dot, name = key.rpartition(".")
        kind = _KINDS.get(name)
        if not equals or kind is None or (dot and role not in ROLES):
            raise SettingsError(
                f"--topology {text}: {word!r} is no setting; write NAME=VALUE or ROLE.NAME=VALUE with a name of"
                f" {', '.join(_KINDS)} and a role of {', '.join(ROLES)}"
            )
        changed = _value(text, name, kind, value)
        for each in (role,) if dot else ROLES:
            machines[each] = replace(machines[each], **{name: changed})
        if dot and not numbers[role]:
            there = ", ".join(role for role, number in numbers.items() if number)
            raise SettingsError(f"--topology {text}: there is no {role} worker for {word!r}; there are {there}")
    return Fleet(text, tuple(Pool(role, number, machines[role]) for role, number in numbers.items() if number))


def _numbers(topology: Topology) -> tuple[int, ...]:
    return topology.num_prefill, topology.num_decode, topology.num_unified, topology.num_hybrid


def _topology(text: str) -> Topology:
    match = _UNIFIED.fullmatch(text)
    if match is None:
        return parse_topology(text)
    if not 1 <= int(match[1]) <= MAX_WORKERS:
        raise SettingsError(f"--topology {text} has {match[1]} workers; write 1u to {MAX_WORKERS}u")
    return Topology(num_unified=int(match[1]))


def _value(text: str, name: str, kind: type, value: str) -> Any:
    """Numbers are above 0."""
    try:
        read = kind(value)
    except ValueError:
        read = 0
    if not read or (kind is not str and not 0 < read < float("inf")):
        wanted = {int: "a whole number above 0", float: "a number above 0", str: "a name"}[kind]
        raise SettingsError(f"--topology {text}: {name} is {value!r}; give {wanted}")
    return read


_KINDS: Mapping[str, type] = {
    field.name: next(kind for kind in (float, int, str) if kind.__name__ in str(field.type))
    for field in fields(Machine)
}
