"""A PostgreSQL server of our own, in a temporary folder and on a Unix socket, where its programs are installed."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

DEADLINE_S = 60  # of each program; only a broken installation reaches it


def why_not() -> str | None:
    """Why no server can be started here; None if one can."""
    missing = [program for program in ("initdb", "pg_ctl", "postgres") if shutil.which(program) is None]
    if missing:
        return f"{missing[0]} is not installed"
    if os.geteuid() == 0 and "postgres" not in {entry.pw_name for entry in pwd.getpwall()}:
        return "PostgreSQL does not run as root and there is no user postgres"
    return None


@contextlib.contextmanager
def postgres() -> Iterator[str]:
    """The URL of a fresh database; the server is gone afterwards."""
    user = "postgres" if os.geteuid() == 0 else None
    folder = Path(tempfile.mkdtemp(prefix="relevo-pg-", dir="/tmp"))  # short: socket paths are limited
    if user is not None:
        shutil.chown(folder, user)

    def run(*command: str) -> None:
        done = subprocess.run(
            command, user=user, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, timeout=DEADLINE_S
        )
        assert done.returncode == 0, done.stderr.decode()

    data = str(folder / "data")
    try:
        run("initdb", "-D", data, "-U", "relevo", "--auth=trust", "--no-sync")
        run("pg_ctl", "-D", data, "-w", "-o", f"-k {folder} -c listen_addresses=''", "-l", str(folder / "log"), "start")
        try:
            yield f"postgresql://relevo@/postgres?host={folder}"
        finally:
            run("pg_ctl", "-D", data, "-m", "immediate", "stop")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
