"""Shell completion: what the installed scripts ask, and what they are told.

Red when a command or flag is not offered, when a file cannot be completed as MODEL, or when completing one command
imports all of them.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest


def complete(shell: str, line: str, **more: str) -> subprocess.CompletedProcess[str]:
    asked = {
        "_RELEVO_COMPLETE": f"complete_{shell}",
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(line.split(" ")) - 1),
        "_TYPER_COMPLETE_ARGS": line,
        **more,
    }
    if shell == "bash":
        del asked["_TYPER_COMPLETE_ARGS"]
    else:
        del asked["COMP_WORDS"]
    code = "import sys; sys.argv = ['relevo']; from relevo.cli.main import main\ntry: main()\nfinally: "
    code += "sys.stderr.write(' '.join(name for name in sys.modules if name.startswith('relevo.cli.')))"
    return subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **asked}, capture_output=True, text=True, check=False
    )


def test_commands_and_flags_are_offered() -> None:
    commands = complete("bash", "relevo ").stdout.split()
    assert {"serve", "chat", "doctor", "bench", "keys"} <= set(commands)
    run = complete("bash", "relevo serve --topo")
    assert run.stdout.split() == ["--topology"]
    assert "relevo.cli.serve" in run.stderr and "relevo.cli.bench" not in run.stderr


@pytest.mark.parametrize("command", ["serve", "doctor"])
def test_a_model_may_be_a_file(command: str) -> None:
    """bash takes files when it is told nothing (`-o default`), zsh is told to, fish is told that there is no list."""
    line = f"relevo {command} mod"
    assert complete("bash", line).stdout.strip() == ""
    assert "_files" in complete("zsh", line).stdout
    assert complete("fish", line, _TYPER_COMPLETE_FISH_ACTION="is-args").returncode == 1
