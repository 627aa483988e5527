"""What a worker is for: how much of it computes prompts, how much decodes. Every worker can do everything.

A role is a preference of the router and a few numbers of the worker's steps, so it changes between two steps, without a
restart, and moves nothing that runs. `policy.routing.worker_choice` reads it as numbers.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from relevo.core.errors import SettingsError

MAX_SHARE = 100
_SHARES = re.compile(r"([0-9]{1,3}):([0-9]{1,3})")


class Role(NamedTuple):
    """`prefill` and `decode` are parts of a whole that is their sum; with neither the worker is on standby.

    `hands_over`: a prompt may be computed on another worker than the one that decodes; else both happen here.
    """

    prefill: int
    decode: int
    hands_over: bool = True

    @property
    def prefill_fraction(self) -> float:
        """Of a step that also decodes, the part that prompts may take."""
        return self.prefill / max(1, self.prefill + self.decode)

    @property
    def decode_fraction(self) -> float:
        """Of the worker, the part that decodes where prompts may go elsewhere; of others the whole."""
        return self.decode / (self.prefill + self.decode) if self.decode and self.hands_over else 1.0

    @property
    def computes_prompts(self) -> bool:
        return self.prefill > 0

    @property
    def decodes(self) -> bool:
        return self.decode > 0

    @property
    def is_standby(self) -> bool:
        return not (self.prefill or self.decode)

    def __str__(self) -> str:
        return next((name for name, role in NAMED.items() if role == self), f"{self.prefill}:{self.decode}")


class RoleChange(NamedTuple):
    """A role that a worker is given. Of two changes the one with the larger version counts, whichever comes last."""

    role: Role
    version: int  # at least 1
    cores: tuple[int, ...] = ()  # to compute on; none: those that it has


PREFILL = Role(1, 0)
DECODE = Role(0, 1)
UNIFIED = Role(1, 1, hands_over=False)
HYBRID = Role(1, 1)
STANDBY = Role(0, 0)
NAMED = {"prefill": PREFILL, "decode": DECODE, "unified": UNIFIED, "hybrid": HYBRID, "standby": STANDBY}


def parse_role(text: str) -> Role:
    """A name of NAMED, or `P:D` such as 3:1. Raises SettingsError."""
    named = NAMED.get(text)
    if named is not None:
        return named
    match = _SHARES.fullmatch(text)
    if match is None:
        raise SettingsError(f"role {text!r} is not known; use {', '.join(NAMED)}, or P:D such as 3:1")
    prefill, decode = int(match[1]), int(match[2])
    if max(prefill, decode) > MAX_SHARE:
        raise SettingsError(f"role {text}: shares go up to {MAX_SHARE}")
    if prefill and not decode:
        return PREFILL
    if decode and not prefill:
        return DECODE
    return Role(prefill, decode)
