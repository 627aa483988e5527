"""A measurement in parts: each is kept in a file of its own once it has ended, and a later command does the rest.

A folder belongs to one set of options. Results of others are not mixed in.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from relevo.bench.html.file import write_whole
from relevo.core.errors import SettingsError

_OPTIONS = "options.json"
_SPARE_S = 20.0  # a slice's start, drain and end beside its load; until one has been timed. Arbitrary


@dataclass(slots=True)
class Slices:
    """`max_s`: no slice is begun that would not end within so much time of this command; None: as long as it takes."""

    folder: Path
    options: Mapping[str, Any]
    max_s: float | None = None
    _began_s: float = field(default_factory=time.monotonic)
    _longest_s: dict[str, float] = field(default_factory=dict)  # by kind of slice

    def open(self) -> None:
        """Raises SettingsError if the folder belongs to other options or cannot be written."""
        path = self.folder / _OPTIONS
        wanted = json.loads(json.dumps(self.options))
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            if not path.exists():
                if any(self.folder.iterdir()):
                    raise SettingsError(f"{self.folder} holds other files; give a folder of its own")
                write_whole(path, json.dumps(wanted, indent=1))
                return
            found = json.loads(path.read_text())
        except (OSError, ValueError) as error:
            raise SettingsError(f"{self.folder} cannot be used for results: {error}") from error
        if not isinstance(found, dict) or found != wanted:
            names = sorted(name for name in {*wanted, *found} if wanted.get(name) != found.get(name))
            told = "; ".join(f"{name} {found.get(name)} instead of {wanted.get(name)}" for name in names)
            raise SettingsError(
                f"{self.folder} was begun with other options ({told}); repeat those, or give another folder"
            )

    def read(self, name: str) -> dict[str, Any] | None:
        """None: it was not measured yet. Raises SettingsError for a file that is no result."""
        path = self.folder / f"{name}.json"
        if not path.exists():
            return None
        try:
            body = json.loads(path.read_text())
        except (OSError, ValueError) as error:
            raise SettingsError(f"{path} cannot be read ({error}); remove it to measure it again") from error
        if not isinstance(body, dict):
            raise SettingsError(f"{path} is no result; remove it to measure it again")
        return body

    def write(self, name: str, body: Mapping[str, Any], *, kind: str = "", took_s: float = 0.0) -> None:
        """Whole or not at all."""
        write_whole(self.folder / f"{name}.json", json.dumps(body))
        self._longest_s[kind] = max(took_s, self._longest_s.get(kind, 0.0))

    def has_time_for(self, load_s: float, kind: str = "") -> bool:
        """`load_s`: what such a slice takes at least."""
        if self.max_s is None:
            return True
        needed_s = self._longest_s.get(kind) or load_s + _SPARE_S
        return time.monotonic() - self._began_s + needed_s <= self.max_s
