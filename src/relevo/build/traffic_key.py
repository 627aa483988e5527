"""Where the traffic log lies and the key that its hashes are made with: decided before anything starts."""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path

from relevo.core.errors import SettingsError, StartError
from relevo.planner.traffic_log import LEAST_BYTES

TRAFFIC_FOLDER = "traffic"
_KEY_FILE, _KEY_BYTES = "key", 32


def traffic_key(folder: Path) -> str:
    """The folder's secret, drawn once, in hexadecimal. Raises StartError where nothing can be kept."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = folder / _KEY_FILE
        if not path.exists():
            made = folder / f"{_KEY_FILE}.{secrets.token_hex(4)}"
            fd = os.open(made, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            with os.fdopen(fd, "w") as file:
                file.write(secrets.token_hex(_KEY_BYTES))
            with contextlib.suppress(FileExistsError):  # of two servers that start at once, one draws it
                os.link(made, path)
            made.unlink()
        key = path.read_text(encoding="ascii").strip()
        if len(bytes.fromhex(key)) != _KEY_BYTES:
            raise ValueError
    except OSError as error:
        raise StartError(
            f"the traffic log cannot be kept in {folder}: {error.strerror}; choose another --data-dir, or leave"
            " --traffic-log-bytes out"
        ) from error
    except ValueError as error:
        raise StartError(
            f"{folder / _KEY_FILE} holds no key; remove the folder, whose chains need the lost one"
        ) from error
    return key


def check_traffic_bytes(num_bytes: int, location: str) -> None:
    """Raises SettingsError for what cannot be kept. `location`: of the usage database."""
    if num_bytes and location == "memory":
        raise SettingsError(
            f"--traffic-log-bytes {num_bytes} keeps requests in the data folder, and --database-url memory keeps"
            " nothing; leave one of them away"
        )
    if 0 < num_bytes < LEAST_BYTES:
        raise SettingsError(f"--traffic-log-bytes {num_bytes} is too little for a log; give at least {LEAST_BYTES}")
