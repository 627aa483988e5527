"""`relevo`: one file per command, mounted here. Only the command asked for is imported: starting a server is quick."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module

import typer

from relevo.core.errors import RelevoError

COMPLETE_VARIABLE = "_RELEVO_COMPLETE"  # set by the shells' completion scripts, see `relevo --install-completion`
# Command: its module, and what is mounted of it (a function, or a Typer with commands of its own).
_MAY_WORK_LATER = 75  # EX_TEMPFAIL of sysexits.h
_COMMANDS = {
    "serve": ("relevo.cli.serve", "command"),
    "join": ("relevo.cli.join", "join"),
    "chat": ("relevo.cli.chat", "chat"),
    "check": ("relevo.cli.check", "check"),
    "edge": ("relevo.cli.edge", "edge"),
    "doctor": ("relevo.cli.doctor", "doctor"),
    "role": ("relevo.cli.role", "role"),
    "top": ("relevo.cli.top", "top"),
    "nodes": ("relevo.cli.nodes", "nodes"),
    "drain": ("relevo.cli.drain", "drain"),
    "why": ("relevo.cli.why", "why"),
    "dashboards": ("relevo.cli.dashboards", "dashboards"),
    "version": ("relevo.cli.version", "version"),
    "usage": ("relevo.cli.usage", "usage"),
    "keys": ("relevo.cli.keys", "app"),
    "cluster": ("relevo.cli.cluster", "app"),
    "bench": ("relevo.cli.bench", "app"),
    "ray": ("relevo.cli.ray", "app"),
    "simulate": ("relevo.cli.simulate", "simulate"),
    "plan": ("relevo.cli.plan", "app"),
}


def make_app(wanted: str | None = None) -> typer.Typer:
    """The command line with `wanted` mounted, or with every command if there is no such one."""
    app = typer.Typer(
        name="relevo",
        help="Prefill/decode-disaggregated LLM serving that starts with one command.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )
    app.callback()(_relevo)
    for name in [wanted] if wanted in _COMMANDS else _COMMANDS:
        module, attribute = _COMMANDS[name]
        mounted: typer.Typer | Callable[..., None] = getattr(import_module(module), attribute)
        if isinstance(mounted, typer.Typer):
            app.add_typer(mounted, name=name)
        else:
            app.command(name)(mounted)
    return app


def _relevo() -> None:
    """Prefill/decode-disaggregated LLM serving that starts with one command."""


def _wanted(argv: Sequence[str], environment: Mapping[str, str]) -> str | None:
    """The command on the line, also on a line that a shell asks us to complete."""
    line = environment.get("COMP_WORDS") or environment.get("_TYPER_COMPLETE_ARGS") or ""
    words = line.split() if COMPLETE_VARIABLE in environment else argv
    return words[1] if len(words) > 1 else None


def open_standard_streams() -> None:
    """Those that are closed lead nowhere: the next sockets would get their numbers, and be taken for them."""
    for fd, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(fd)
        except OSError:
            opened = os.open(os.devnull, os.O_RDWR)
            if opened != fd:
                os.dup2(opened, fd)
                os.close(opened)
            os.set_inheritable(fd, True)  # what this one starts has them too
        if getattr(sys, name) is None:
            setattr(sys, name, open(fd, mode, closefd=False))  # noqa: SIM115  # as long as the process lives


def main() -> None:
    """Run a command; an error a person can mend is one sentence on stderr and exit status 2, or 75 where the same
    command may work later without a change: a service manager restarts it only then."""
    open_standard_streams()
    gc.disable()  # what imports make is no garbage, and looking through it takes a tenth of their time
    try:
        app = make_app(_wanted(sys.argv, os.environ))
        gc.freeze()
        gc.enable()
        app()
    except RelevoError as error:
        sys.stderr.write(f"relevo: {error.message}\n")
        sys.exit(_MAY_WORK_LATER if error.retryable else 2)
    except KeyboardInterrupt:  # while a command is imported; from then on it is the command's own affair
        sys.exit(130)


if __name__ == "__main__":
    main()
