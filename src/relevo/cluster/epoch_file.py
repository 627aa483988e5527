"""Epochs on disk, so that none is ever given twice: a node's own, and at a head the highest of every node.

A file that is lost or cannot be read counts as empty: time and the other side's memory keep the numbers apart.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path

import msgspec

from relevo.cluster.identity_folder import write_private

log = logging.getLogger("relevo.cluster")

OWN_EPOCH, ACCEPTED_EPOCHS = "epoch.json", "epochs.json"


class EpochFile:
    """Small enough to be written at each change; whole and synced when `keep` returns."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._kept: dict[str, int] = {}

    def read(self) -> dict[str, int]:
        try:
            self._kept = msgspec.json.decode(self._path.read_bytes(), type=dict[str, int])
        except FileNotFoundError:
            pass
        except (OSError, msgspec.MsgspecError) as error:
            log.warning("%s cannot be read (%s); epochs go on from the time of day", self._path, error)
        return dict(self._kept)

    def keep(self, epochs: Mapping[str, int]) -> None:
        """Raises StartError if they cannot be kept: then they must not be used."""
        if epochs != self._kept:
            write_private(self._path, msgspec.json.encode(dict(epochs)))
            self._kept = dict(epochs)
