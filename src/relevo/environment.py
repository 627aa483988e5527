"""Which `RELEVO_*` variables are settings, and which only look so. Pure.

Kubernetes makes variables for every service: one that is called `relevo` gives RELEVO_PORT=tcp://10.0.0.1:8000,
RELEVO_SERVICE_HOST and more. They are known by their shape and left alone. Source: Kubernetes' "Services", environment
variables.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

PREFIX = "RELEVO_"
_OF_OTHER_PARTS = frozenset(("cpu_path",))  # read where they are used
_MEANT_IF_EMPTY = frozenset(("api_key",))  # refused: it would open a server that is meant to be closed
_SERVICE_NAME = re.compile(
    r"(\w+_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)", re.ASCII
)
_SERVICE_PORT = re.compile(r"(\w+_)?PORT", re.ASCII)
_SERVICE_URL = re.compile(r"(tcp|udp|sctp)://")


@dataclass(frozen=True, slots=True)
class Environment:
    values: dict[str, str]  # by the name of the setting
    notes: tuple[str, ...] = ()  # what was left alone, and why


def read_environment(environ: Mapping[str, str], settings: Iterable[str]) -> Environment:
    """An empty variable is one that is not set."""
    known = set(settings)
    values: dict[str, str] = {}
    of_services, unknown = [], []
    for variable, value in sorted(environ.items()):
        if not variable.startswith(PREFIX):
            continue
        rest = variable.removeprefix(PREFIX)
        name = rest.lower()
        if _is_of_a_service(rest, value):
            of_services.append(variable)
        elif name in known and rest.isupper():
            if value or name in _MEANT_IF_EMPTY:
                values[name] = value
        elif name not in _OF_OTHER_PARTS:
            unknown.append(variable + _nearest(name, known))
    notes = []
    if of_services:
        notes.append(f"left alone, as Kubernetes makes them for a service: {', '.join(of_services)}")
    if unknown:
        notes.append(f"no setting has the name of {', '.join(unknown)}")
    return Environment(values, tuple(notes))


def _is_of_a_service(rest: str, value: str) -> bool:
    if _SERVICE_NAME.fullmatch(rest):
        return True
    return _SERVICE_PORT.fullmatch(rest) is not None and _SERVICE_URL.match(value) is not None


def _nearest(name: str, known: set[str]) -> str:
    found = difflib.get_close_matches(name, known, n=1)
    return f" (is {PREFIX}{found[0].upper()} meant?)" if found else ""
