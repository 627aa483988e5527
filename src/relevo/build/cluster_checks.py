"""What of a box's part in a cluster is wrong whatever other boxes say: told before any of them is dialled, so that no
mistake waits for a head, and none uses up a join token."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from relevo.build.engines import check_engine_installed, check_one_kind
from relevo.build.hardware import detect_hardware
from relevo.build.plan import allowed_cores
from relevo.build.resolve import topology_of
from relevo.core.cluster import OWN_ENGINE
from relevo.core.errors import SettingsError
from relevo.core.host_port import HostPort
from relevo.engines.spec import key_of, parse_engines
from relevo.settings import Settings

OF_THE_HEAD = (  # equal on all boxes; `relevo join` takes them from the head
    *("model", "revision", "dtype", "quantization", "activation_dtype", "kv_cache_dtype", "max_model_len"),
)
_HAS_FLAG = {"topology": "--role", "advertise": "--advertise", "token_file": "--token-file", "model": "--model"}
_OF_SERVE = ("models", "cluster", "join")


def check_set(options: Mapping[str, str]) -> None:
    """`--set` of `relevo join`. Raises SettingsError for what would be overwritten without a word."""
    for name, value in options.items():
        if not name or not value:
            raise SettingsError(f"--set {name} has no value; write it like --set cores=0,1")
        if name in _HAS_FLAG:
            raise SettingsError(f"--set {name}={value}: a box that joins is told this with {_HAS_FLAG[name]}")
        if name in OF_THE_HEAD:
            raise SettingsError(
                f"--set {name}={value}: this is equal on all boxes and taken from the head; leave it out, or start "
                f"the head with --{name.replace('_', '-')}"
            )
        if name in _OF_SERVE:
            raise SettingsError(f"--set {name}={value} is of `relevo serve`; leave it out")


def check_box(settings: Settings) -> None:
    """Workers of a box of a cluster, as far as they do not hang on the model. Raises SettingsError."""
    num_workers = 1 if settings.topology == "auto" else topology_of(settings).num_workers
    if settings.cores:
        allowed_cores(settings.cores, detect_hardware("cpu").cores, "--cores")
    check_one_kind(settings)
    if settings.worker:
        for spec in parse_engines(settings.worker, is_part=True):
            key_of(spec)
        num_workers = 0
    if settings.engine != OWN_ENGINE:
        if num_workers:
            check_engine_installed(settings.engine)
        num_workers = 0  # engines have ports of their own
    from relevo.build.kv_door import parse_ports  # and its TLS: between boxes only

    parse_ports(settings.kv_port, num_workers)


def check_lends(settings: Settings) -> None:
    """Raises SettingsError for a box that would join for nothing."""
    if not settings.worker and settings.topology != "auto" and not topology_of(settings).num_workers:
        raise SettingsError(
            f"--role {settings.topology}: a box joins to lend its workers, and this is none; use auto, unified, "
            "prefill, decode, or NpMd, Np or Md such as 1p1d or 2p"
        )


def check_heads(heads: Iterable[HostPort], name: str) -> None:
    """Raises SettingsError for one that cannot be connected to."""
    for head in heads:
        if head.is_wildcard or not head.port:
            raise SettingsError(f"{name} {head} is no place to connect to; give host and port of a head's --cluster")


def check_model_path(model: str | None) -> None:
    """Raises SettingsError for a path, as against a name of a model, at which nothing is."""
    if model and re.match(r"[./~]", model):
        try:
            is_there = Path(model).expanduser().exists()
        except RuntimeError:  # no such home folder
            is_there = False
        if not is_there:
            raise SettingsError(f"--model {model}: there is no file or folder of that name on this box")
