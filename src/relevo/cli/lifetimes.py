"""A length of time as people write it on a command line: `20s`, `90m`, `12h`, `30d`, `2w`."""

from __future__ import annotations

import re

from relevo.core.errors import SettingsError

_LIFETIME = re.compile(r"(\d{1,7})([smhdw])")
_UNIT_S = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}


def lifetime_s(text: str) -> int | None:
    """None: it is none."""
    found = _LIFETIME.fullmatch(text.strip())
    return None if found is None else int(found[1]) * _UNIT_S[found[2]]


def checked_lifetime_s(text: str, flag: str, least_s: float, most_s: float) -> int:
    """Raises SettingsError."""
    seconds = lifetime_s(text)
    if seconds is None:
        raise SettingsError(f"{flag} {text[:40]} is no length of time; write it like 30m, 12h or 7d")
    if not least_s <= seconds <= most_s:
        raise SettingsError(f"{flag} {text} is not between {shown(least_s)} and {shown(most_s)}; choose one that is")
    return seconds


def shown(seconds: float) -> str:
    """In the largest unit that goes into it."""
    whole = max(0, int(seconds))
    unit = next((unit for unit in "dhm" if whole >= _UNIT_S[unit] and whole % _UNIT_S[unit] == 0), "s")
    return f"{whole // _UNIT_S[unit]}{unit}"
