"""A file that says that there were API keys: a key database that is lost must not open the server that it closed.

One per database, in the data folder, named by a digest of the database's name; made with the first key, removed by
people only.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from relevo.gateway.metering.database import name_within


class KeysMarker:
    def __init__(self, folder: Path, database_name: str) -> None:
        name = name_within(folder, database_name)
        self.path = folder / f"keys-existed-{hashlib.sha256(name.encode()).hexdigest()[:16]}"
        self._text = f"There were API keys in {database_name}. Without this file, Relevo may serve it without keys.\n"

    @property
    def exists(self) -> bool:
        return self.path.exists()

    def leave(self) -> None:
        """Idempotent. Raises OSError."""
        if self.exists:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "w") as file:
            file.write(self._text)
