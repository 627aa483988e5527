"""`relevo version`: what runs here."""

from __future__ import annotations

import platform
from importlib import metadata

import typer

from relevo import __version__

_PARTS = ("torch", "numpy", "tokenizers", "safetensors", "gguf", "uvicorn", "starlette", "msgspec")


def version() -> None:
    """Print the versions of Relevo, Python and the parts that matter for a bug report."""
    typer.echo(f"relevo {__version__}")
    typer.echo(f"python {platform.python_version()} on {platform.system()} {platform.machine()}")
    for part in _PARTS:
        try:
            typer.echo(f"{part} {metadata.version(part)}")
        except metadata.PackageNotFoundError:
            typer.echo(f"{part} not installed")
