"""`--quiet`, the same for every command that shows progress (`relevo serve` has it as a setting)."""

from __future__ import annotations

from typing import Annotated

import typer

from relevo.telemetry.progress import be_quiet


def _hush(is_quiet: bool) -> bool:
    be_quiet(is_quiet)
    return is_quiet


# What a command gets of it needs no look: the process is quiet by then.
Quiet = Annotated[
    bool, typer.Option("--quiet", envvar="RELEVO_QUIET", callback=_hush, help="Show no progress at the terminal.")
]
