"""Which workers there are, with which role, on which cores. Pure: hardware is told, nothing is probed.

Owns the words `unified`, `NpMd` and `hybrid`. Does not know models, memory or processes.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from relevo.core.errors import SettingsError

_NPMD = re.compile(r"([0-9]+)p([0-9]+)d")
_PART = re.compile(r"(?:([0-9]+)p)?(?:([0-9]+)d)?")  # of a cluster, on one box
_ONE = {"prefill": "1p", "decode": "1d"}
_HYBRID = re.compile(r"([0-9]+)h")
_CORES_OF_DECODING = 4  # arbitrary; one core needs 1.6 times as long as two for a step of 28 rows (docs/lab-log.md)
MAX_WORKERS = 512  # arbitrary: more than one machine serves a model with; a slip of the finger would start them all


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """Either some prefill and some decode workers, or unified ones only, or hybrid ones only."""

    num_prefill: int = 0
    num_decode: int = 0
    num_unified: int = 0
    num_hybrid: int = 0

    @property
    def num_workers(self) -> int:
        return self.num_prefill + self.num_decode + self.num_unified + self.num_hybrid

    @property
    def is_split(self) -> bool:
        return self.num_prefill > 0

    def worker_roles(self) -> tuple[tuple[str, str], ...]:
        """(worker id, role) of every worker; prefill workers first."""
        numbers = (
            ("prefill", self.num_prefill),
            ("decode", self.num_decode),
            ("unified", self.num_unified),
            ("hybrid", self.num_hybrid),
        )
        return tuple((f"{role}-{i}", role) for role, number in numbers for i in range(number))

    def __str__(self) -> str:
        if not self.num_workers:
            return "none"
        if self.num_hybrid:
            return "hybrid" if self == TWO_HYBRID else f"{self.num_hybrid}h"
        if self.num_unified:
            return "unified"
        prefill, decode = (f"{number}{letter}" if number else "" for number, letter in self._letters)
        return prefill + decode

    @property
    def _letters(self) -> tuple[tuple[int, str], tuple[int, str]]:
        return (self.num_prefill, "p"), (self.num_decode, "d")


UNIFIED = Topology(num_unified=1)
ONE_OF_EACH = Topology(num_prefill=1, num_decode=1)
TWO_HYBRID = Topology(num_hybrid=2)


def parse_topology(text: str) -> Topology:
    """`unified`, `NpMd`, or `hybrid` with two workers or `Nh`. Raises SettingsError; `auto` is not a topology but the
    wish to have one chosen."""
    if text in ("unified", "hybrid"):
        return UNIFIED if text == "unified" else TWO_HYBRID
    if match := _HYBRID.fullmatch(text):
        return _hybrid(text, int(match[1]))
    match = _NPMD.fullmatch(text)
    if match is None:
        raise SettingsError(
            f"--topology {text!r} is not known; use auto, unified, hybrid, or NpMd such as 1p1d or 2p1d"
        )
    num_prefill, num_decode = int(match[1]), int(match[2])
    if num_prefill < 1 or num_decode < 1:
        raise SettingsError(
            f"--topology {text} has no {'prefill' if num_prefill < 1 else 'decode'} worker, and a split topology needs "
            f"at least one of each; use 1p1d, or unified for workers that do both"
        )
    if num_prefill + num_decode > MAX_WORKERS:
        raise SettingsError(f"--topology {text} has more than {MAX_WORKERS} workers; use fewer")
    return Topology(num_prefill=num_prefill, num_decode=num_decode)


def parse_part(text: str) -> Topology:
    """What one box of a cluster has: as `parse_topology`, or workers of one role, or none at all."""
    match = _PART.fullmatch(_ONE.get(text, text))
    if text == "none":
        return Topology()
    if match is None or not match[0]:
        if text == "unified":
            return UNIFIED
        raise SettingsError(
            f"{text!r} is not what a box of a cluster can have; use none, auto, unified, prefill, decode, or NpMd, Np "
            f"or Md such as 1p1d or 2p"
        )
    part = Topology(num_prefill=int(match[1] or 0), num_decode=int(match[2] or 0))
    if part.num_workers > MAX_WORKERS:
        raise SettingsError(f"{text} has more than {MAX_WORKERS} workers; use fewer")
    return part


def _hybrid(text: str, number: int) -> Topology:
    if not 2 <= number <= MAX_WORKERS:
        raise SettingsError(f"--topology {text}: hybrid workers hand prompts to each other; use 2h to {MAX_WORKERS}h")
    return Topology(num_hybrid=number)


def choose_topology(num_cores: int, num_devices: int = 0) -> tuple[Topology, str]:
    """What `auto` means here, and why, in words for the log. Devices count if there are any, otherwise cores."""
    number, unit = (num_devices, "device") if num_devices else (num_cores, "core")
    if number < 2:
        return UNIFIED, f"one {unit} cannot be shared out; long prompts will delay tokens of running streams"
    if not num_devices and num_cores < 2 * _CORES_OF_DECODING:
        return TWO_HYBRID, (
            f"{number} cores: a worker with fewer than {_CORES_OF_DECODING} computes as long as it reads while it "
            f"decodes, so neither phase can spare cores to the other one, and both workers do both"
        )
    return ONE_OF_EACH, (
        f"{number} {unit}s: a prompt never delays the tokens of running streams; in return each phase has a part of "
        f"the {unit}s only (--topology unified gives both phases all of them)"
    )


def assign_cores(cores: Sequence[int], topology: Topology, *, may_share: bool = False) -> list[list[int]]:
    """Disjoint runs of cores in the order of `worker_roles`, all of them used, each worker at least one.

    What does not divide evenly goes to prefill workers, whose work grows with cores; decode waits for memory.
    Raises SettingsError if there are fewer cores than workers, unless they `may_share` them in turn.
    """
    num_workers = topology.num_workers
    if not num_workers:
        return []
    if len(cores) < num_workers and may_share:
        return [[cores[index % len(cores)]] for index in range(num_workers)]
    if len(cores) < num_workers:
        raise SettingsError(
            f"--topology {topology} starts {num_workers} workers, but they may use only {len(cores)} "
            f"core{'s' if len(cores) != 1 else ''} and each needs one of its own; allow more with --cores or let "
            f"them share with --share-cores, or use --topology {choose_topology(len(cores))[0]}"
        )
    share, num_left = divmod(len(cores), num_workers)
    num_takers = topology.num_prefill or num_workers
    assigned: list[list[int]] = []
    first = 0
    for index in range(num_workers):
        extra = num_left // num_takers + (index < num_left % num_takers) if index < num_takers else 0
        assigned.append(list(cores[first : first + share + extra]))
        first += share + extra
    return assigned


def share_cores(
    cores: Sequence[int],
    *,
    weights: Sequence[float],
    minimums: Sequence[int],
    names: Sequence[str],
    may_share: bool = False,
) -> list[list[int]]:
    """Disjoint runs of cores, one for each model, all of them used.

    Each model gets its minimum, the number of its workers; every further core goes to the model that has least for its
    weight, the first of equals. Raises SettingsError if there are fewer cores than workers, unless the models
    `may_share`: then each has all cores, in an order that begins where the workers before it end.
    """
    if len(minimums) == 1:
        return [list(cores)]  # whether they are enough is for its topology to say
    num_workers = sum(minimums)
    if len(cores) < num_workers and may_share:
        firsts = [sum(minimums[:index]) % len(cores) for index in range(len(minimums))]
        return [[*cores[first:], *cores[:first]] for first in firsts]
    if len(cores) < num_workers:
        asked = ", ".join(f"{name} {minimum}" for name, minimum in zip(names, minimums, strict=True))
        raise SettingsError(
            f"the models start {num_workers} workers ({asked}), but they may use only {len(cores)} "
            f"core{'s' if len(cores) != 1 else ''} and each needs one of its own; allow more with --cores, let them "
            f"share with --share-cores, or ask for topologies of fewer workers"
        )
    counts = list(minimums)
    for _ in range(len(cores) - num_workers):
        counts[min(range(len(counts)), key=lambda index: counts[index] / weights[index])] += 1
    ends = [sum(counts[: index + 1]) for index in range(len(counts))]
    return [list(cores[end - count : end]) for end, count in zip(ends, counts, strict=True)]
