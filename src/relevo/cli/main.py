"""`relevo`: one file per command, mounted here."""

from __future__ import annotations

import sys

import typer

from relevo.cli.bench import app as bench_app
from relevo.cli.check import check
from relevo.cli.drain import drain
from relevo.cli.edge import edge
from relevo.cli.keys import app as keys_app
from relevo.cli.serve import serve_command
from relevo.cli.usage import usage
from relevo.cli.version import version
from relevo.core.errors import RelevoError

app = typer.Typer(
    name="relevo",
    help="Prefill/decode-disaggregated LLM serving that starts with one command.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.command("serve")(serve_command())
app.command("check")(check)
app.command("edge")(edge)
app.command("drain")(drain)
app.command("version")(version)
app.command("usage")(usage)
app.add_typer(keys_app, name="keys")
app.add_typer(bench_app, name="bench")


def main() -> None:
    """Run a command; an error a person can mend is one sentence on stderr and exit status 2."""
    try:
        app()
    except RelevoError as error:
        sys.stderr.write(f"relevo: {error.message}\n")
        sys.exit(2)


if __name__ == "__main__":
    main()
