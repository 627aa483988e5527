"""What follows from leaving the topology to Relevo, and what is refused of it: words and errors. Pure."""

from __future__ import annotations

import shutil
from pathlib import Path

from relevo.build.configs import WorkerNumberConfig
from relevo.core.errors import SettingsError
from relevo.policy.host.auto_mode import planner_for
from relevo.policy.host.topology import Topology
from relevo.settings import Settings


def planner_of(settings: Settings, topology: Topology) -> str:
    """Heads of a cluster each see a part of what comes in, and engines that are not ours change no role."""
    has_own_workers = settings.engine == "relevo" and not settings.worker
    return planner_for(
        settings.planner,
        is_auto=settings.topology == "auto" and has_own_workers and not (settings.cluster or settings.join),
        num_workers=topology.num_workers,
        num_gateways=settings.gateways,
        plans_number=settings.max_workers is not None,
    )


def number_config(settings: Settings) -> WorkerNumberConfig | None:
    """How many workers the planner may want; None: it plans no number. Raises SettingsError."""
    least, most = settings.min_workers, settings.max_workers
    if most is None:
        if settings.scale_command:
            raise SettingsError(f"--scale-command {settings.scale_command[0]} needs a bound; add --max-workers N")
        return None
    asked = f"--max-workers {most}"
    if settings.planner == "off":
        raise SettingsError(f"{asked} is for the planner, and --planner is off; write on or dry-run, or leave it out")
    if not settings.cluster:
        raise SettingsError(f"{asked} counts workers of boxes that join, and none can; add --cluster HOST:PORT")
    if settings.engine != "relevo" or settings.worker:
        raise SettingsError(f"{asked} is for Relevo's own workers: what steps of another engine cost is not known")
    if least > most:
        raise SettingsError(f"--min-workers {least} is above {asked}; swap them")
    if settings.scale_command:
        _check_program(settings.scale_command[0])
    has_targets = settings.slo_ttft_p90 is not None or settings.slo_itl_p90 is not None
    spare = 1 if has_targets and most > 1 else 0
    return WorkerNumberConfig(
        least=least,
        most=most,
        spare=spare,
        start_s=settings.worker_start_s,
        command=settings.scale_command,
        command_timeout_s=settings.scale_timeout_s,
    )


def _check_program(name: str) -> None:
    """Raises SettingsError."""
    if shutil.which(name) is not None:
        return
    if Path(name).is_file():
        raise SettingsError(f"--scale-command {name} is a file that cannot be executed; run chmod +x {name}")
    raise SettingsError(f"--scale-command {name}: there is no such program; give its path, or one on PATH")


def check_history(settings: Settings) -> None:
    if settings.auto_from is None:
        return
    if settings.topology != "auto":
        raise SettingsError(
            f"--auto-from {settings.auto_from} chooses how --topology auto starts, and --topology is"
            f" {settings.topology}; leave one of them out"
        )
    if settings.gateways > 1:
        raise SettingsError(
            f"--auto-from {settings.auto_from} needs one gateway, which gives the roles, and --gateways is"
            f" {settings.gateways}; use 1, or leave it out"
        )


def what_may_change(settings: Settings, topology: Topology) -> str:
    if planner_of(settings, topology) != "on":
        return ""
    if topology.num_workers < 2:
        return "; --planner on has nothing to choose with one worker"
    return "; where it starts: roles follow the traffic, which is said here and at /v1/plan (--planner off keeps them)"
