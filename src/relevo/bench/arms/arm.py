"""One way to serve, by the name that a person types: unified, unified-512, 1p1d, hybrid, hybrid-1:3, auto. Pure.

All arms have the same machine. Those without a chunk size of their own are told the targets, so that they bound their
prompts' chunks as they do in service; a fixed chunk size stands for itself.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from relevo.core.errors import SettingsError
from relevo.core.role import Role, parse_role
from relevo.policy.host.topology import parse_topology
from relevo.telemetry.latency import Slo

AUTO = "auto"
UNIFIED = "unified"
_CHUNKED = re.compile(r"unified-([0-9]{1,6})")
_HYBRID = re.compile(r"hybrid(?:-([0-9]+:[0-9]+))?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """`flags`: of `relevo serve`. `role`: of every worker, given once the server runs; None: as it was started."""

    name: str
    flags: tuple[str, ...]
    role: Role | None = None
    chunk_size: int | None = None

    @property
    def is_fixed(self) -> bool:
        """Its mode never changes."""
        return self.name != AUTO

    @property
    def is_unified(self) -> bool:
        return self.name.startswith(UNIFIED)

    @property
    def words(self) -> str:
        """Everything in which it differs from other arms."""
        return " ".join(self.flags) + (f", then every worker is made {self.role}" if self.role is not None else "")


def arm_named(name: str, slo: Slo) -> Arm:
    """Raises SettingsError for what is no arm."""
    targets = _targets(slo)
    if name == AUTO:
        return Arm(name=name, flags=("--topology", "auto", "--planner", "on", *targets))
    if chunked := _CHUNKED.fullmatch(name):
        size = int(chunked[1])
        flags = ("--topology", UNIFIED, "--max-num-batched-tokens", str(size))
        return Arm(name=name, flags=flags, chunk_size=size)
    if hybrid := _HYBRID.fullmatch(name):
        role = parse_role(hybrid[1] or "hybrid")
        return Arm(name=name, flags=("--topology", "1p1d", *targets), role=role)
    try:
        parse_topology(name)
    except SettingsError:
        raise SettingsError(
            f"{name!r} is no arm; use unified, unified-512 (tokens of a step), 1p1d, hybrid, hybrid-1:3 or auto"
        ) from None
    return Arm(name=name, flags=("--topology", name, *targets))


def arms_named(text: str, slo: Slo) -> list[Arm]:
    """Raises SettingsError for none, for one given twice, or for what is no arm."""
    names = [part.strip() for part in text.split(",") if part.strip()]
    if not names or len(set(names)) < len(names):
        told = "one of them twice" if names else "none"
        raise SettingsError(f"the arms {text!r} name {told}; write unified,1p1d,auto for example")
    return [arm_named(name, slo) for name in names]


def in_turns(arms: Sequence[Arm], rounds: int) -> list[tuple[int, Arm]]:
    """A B, B A, ...: what a machine does over time meets all arms alike."""
    return [(number, arm) for number in range(1, rounds + 1) for arm in (arms if number % 2 else list(reversed(arms)))]


def _targets(slo: Slo) -> tuple[str, ...]:
    found: list[str] = []
    for flag, target_s in (("--slo-ttft-p90", slo.ttft_s), ("--slo-itl-p90", slo.itl_s)):
        if target_s is not None:
            found += [flag, f"{target_s:g}s"]
    return tuple(found)
