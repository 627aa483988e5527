"""Limits of this machine's cores as former starts measured them, in a file of the user's cache folder.

A measurement in a moment comes out low where other workers start on the same memory: the best of a few is kept, by what
it depends on, and later starts measure no more. A file that cannot be read or written costs nothing but that.
"""

from __future__ import annotations

import contextlib
import logging
import os
import platform
import tempfile
from collections.abc import Callable
from pathlib import Path

import msgspec

from relevo.core.events import WorkerLimits

log = logging.getLogger("relevo.engine")

MAX_MEASUREMENTS = 5  # of one kind of worker; arbitrary
_MAX_ENTRIES = 64  # the ones used last; arbitrary
_MAX_BYTES = 1 << 20  # of the file; a longer one is not ours


class _Known(msgspec.Struct):
    product_ops_per_s: float
    read_bytes_per_s: float
    num_measured: int


def best_known(folder: Path | None, kind: str, measure: Callable[[], WorkerLimits]) -> WorkerLimits:
    """`kind`: what the limits depend on beside the processor and the machine. `folder`: None for no file."""
    if folder is None:
        return measure()
    path, key = folder / "machine-limits.json", f"{platform.node()}, {_processor()}, {kind}"
    entries = _read(path)
    known = entries.pop(key, None)
    if known is None or known.num_measured < MAX_MEASUREMENTS:
        measured = measure()
        if measured.product_ops_per_s is None or measured.read_bytes_per_s is None:
            return measured
        before = known or _Known(0.0, 0.0, 0)
        known = _Known(
            max(before.product_ops_per_s, measured.product_ops_per_s),
            max(before.read_bytes_per_s, measured.read_bytes_per_s),
            before.num_measured + 1,
        )
        _write(path, dict([*entries.items(), (key, known)][-_MAX_ENTRIES:]))
    return WorkerLimits(product_ops_per_s=known.product_ops_per_s, read_bytes_per_s=known.read_bytes_per_s)


def cache_folder() -> Path | None:
    """Of this user; None: there is none."""
    cache = os.environ.get("XDG_CACHE_HOME") or ""  # only absolute paths are valid there
    try:
        return (Path(cache) if cache.startswith("/") else Path.home() / ".cache") / "relevo"
    except RuntimeError:  # no home folder
        return None


def _processor() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(errors="replace").splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                return value.strip()
    return platform.machine()


def _read(path: Path) -> dict[str, _Known]:
    try:
        with path.open("rb") as file:
            entries = msgspec.json.decode(file.read(_MAX_BYTES), type=dict[str, _Known])
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return {}
    return {key: each for key, each in entries.items() if each.product_ops_per_s > 0 and each.read_bytes_per_s > 0}


def _write(path: Path, entries: dict[str, _Known]) -> None:
    """Whole or not at all; of two that write at once one counts."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=path.name)
        with os.fdopen(descriptor, "wb") as file:
            file.write(msgspec.json.format(msgspec.json.encode(entries), indent=1))
        Path(name).replace(path)
    except OSError as error:
        log.debug("the limits of this machine's cores are not kept: %s", error)
