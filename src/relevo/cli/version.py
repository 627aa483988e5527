"""`relevo version`: what runs here."""

from __future__ import annotations

import platform
from importlib import metadata
from typing import Annotated

import typer

from relevo import __version__

_PARTS = ("relevo-native", "torch", "numpy", "tokenizers", "gguf", "uvicorn", "starlette", "msgspec")


def version(
    cpu: Annotated[
        bool, typer.Option("--cpu", help="Say which instruction path the CPU kernels take here, and why.")
    ] = False,
) -> None:
    """Print the versions of Relevo, Python and the parts that matter for a bug report."""
    if cpu:
        from relevo.build.backend import describe_cpu

        typer.echo(describe_cpu())
        return
    typer.echo(f"relevo {__version__}")
    typer.echo(f"python {platform.python_version()} on {platform.system()} {platform.machine()}")
    for part in _PARTS:
        try:
            typer.echo(f"{part} {metadata.version(part)}")
        except metadata.PackageNotFoundError:
            typer.echo(f"{part} not installed")
