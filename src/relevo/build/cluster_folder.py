"""Where a box keeps who it is in a cluster: beside its other data, unless told otherwise."""

from __future__ import annotations

import socket
from pathlib import Path

from relevo.build.ledger import data_folder
from relevo.cluster.peer import is_node_name
from relevo.core.errors import SettingsError

_FOLDER = "cluster"


def cluster_folder(folder: str | None, data_dir: str | None = None) -> Path:
    """`folder`: as `--dir` says. Raises SettingsError."""
    if not folder:
        return data_folder(data_dir) / _FOLDER
    try:
        return Path(folder).expanduser().absolute()
    except RuntimeError as error:
        raise SettingsError(f"--dir {folder}: there is no such home folder; write the whole path") from error


def default_node_name() -> str:
    """That of this machine. Raises SettingsError where it cannot be a node's."""
    name = socket.gethostname().partition(".")[0]
    if not is_node_name(name):
        raise SettingsError(f"the name of this machine, {name[:40]!r}, cannot be a node's; give --name")
    return name
