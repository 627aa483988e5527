"""What Relevo's processes are started with: tied to the one that starts them, and importing nothing from here.

The instants at which a starter dies are made, not waited for; the end of every process is the end of a pipe that each
of them has inherited.
"""

from __future__ import annotations

import ast
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from relevo.wire.child_process import on_leash, python_environment

SOURCE = Path(__file__).parents[2] / "src" / "relevo"

# A supervisor that dies at a chosen instant, with real children that would run for ever otherwise.
_DYING_SUPERVISOR = """
import asyncio, os, signal, sys
from relevo.build.gateways import gateway_configs
from relevo.build.listening import open_listener
from relevo.build.serve import plan_serving, serving
from relevo.settings import Settings
from relevo.supervisor import Supervisor

instant, number, held_fd = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
start = asyncio.create_subprocess_exec
seen = 0

def die_at(what):
    global seen
    seen += what == instant
    if seen == number:
        os.kill(os.getpid(), signal.SIGKILL)

async def start_and_maybe_die(*command, **options):
    process = await start(*command, **{**options, "pass_fds": (*options["pass_fds"], held_fd)})
    die_at("forked")
    return process

read = Supervisor._read_statuses

async def read_and_maybe_die(self, child, read_fd):
    die_at("configured")
    await read(self, child, read_fd)

asyncio.create_subprocess_exec = start_and_maybe_die
Supervisor._read_statuses = read_and_maybe_die
settings = Settings(model="fake", topology="1p1d", gateways=2, database_url="memory", port=0)
def on_status(name, status):
    if status.kind == "ready":
        die_at("ready")
with serving(settings, plan_serving(settings), open_listener("127.0.0.1", 0), on_status) as supervisor:
    asyncio.run(supervisor.run())
"""


@pytest.mark.parametrize(
    ("instant", "number"),
    [("forked", 1), ("forked", 4), ("configured", 1), ("configured", 2), ("configured", 4), ("ready", 1)],
)
def test_no_process_outlives_a_supervisor_that_is_killed_at_any_instant(instant: str, number: int) -> None:
    """Red when a child asks who its parent is: killed before that, it takes whoever inherits it for the supervisor."""
    held, holding = os.pipe()
    with os.fdopen(held, "rb") as ended:
        process = subprocess.Popen(
            [sys.executable, "-c", _DYING_SUPERVISOR, instant, str(number), str(holding)],
            pass_fds=(holding,),
            stderr=subprocess.DEVNULL,
        )
        os.close(holding)
        assert process.wait() == -signal.SIGKILL
        assert ended.read() == b""  # returns when the last process that has the other end is gone


@pytest.mark.parametrize("kind", ["worker", "gateway"])
def test_a_child_whose_starter_is_gone_reads_no_configuration(kind: str) -> None:
    """Its standard input stays open, so that only the other pipe can tell."""
    life_fd, other_end = os.pipe()
    os.close(other_end)
    child = subprocess.Popen(
        [sys.executable, "-P", "-m", "relevo.cli.child", kind, str(life_fd)],
        stdin=subprocess.PIPE,
        pass_fds=(life_fd,),
    )
    os.close(life_fd)
    try:
        assert child.wait(timeout=120) == 1
    finally:
        child.kill()
        child.communicate()


def test_a_command_on_a_leash_ends_with_its_starter_and_runs_unchanged_otherwise() -> None:
    life_fd, other_end = os.pipe()
    asked = [sys.executable, "-c", "import sys; print(sys.argv[1])", "what was asked for"]
    done = subprocess.run(on_leash(life_fd, asked), pass_fds=(life_fd,), capture_output=True, text=True, check=True)
    assert done.stdout == "what was asked for\n"
    os.close(other_end)
    gone = subprocess.run(on_leash(life_fd, asked), pass_fds=(life_fd,), capture_output=True, text=True, check=False)
    os.close(life_fd)
    assert (gone.returncode, gone.stdout) == (1, "")


def poisoned(folder: Path) -> Path:
    """A folder with a module of every name that Python and the packages here could be asked for."""
    marker = folder / "executed"
    names = {name for name in sys.stdlib_module_names if not name.startswith("_")} | {
        *("msgspec", "numpy", "uvicorn", "starlette", "orjson", "tokenizers", "pydantic", "typer", "rich", "uvloop"),
        *("relevo_native", "prometheus_client", "jinja2", "httptools", "sitecustomize_of_nobody"),
    }
    for name in names:
        (folder / f"{name}.py").write_text(f"open({str(marker)!r}, 'a').write({name!r} + ' ')\nraise SystemExit(9)\n")
    return marker


def _environment(**more: str) -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | more


_WHOLE_SERVER = """
import sys
from relevo.build.listening import open_listener
from relevo.build.serve import plan_serving, serving
from relevo.settings import Settings
import asyncio
settings = Settings(model="fake", topology="1p1d", gateways=2, database_url="memory", port=0)
num_ready = 0
def on_status(name, status):
    global num_ready
    num_ready += status.kind == "ready"
    if num_ready == 4:
        supervisor.stop()
with serving(settings, plan_serving(settings), open_listener("127.0.0.1", 0), on_status) as supervisor:
    asyncio.run(supervisor.run())
print("served")
"""


@pytest.mark.parametrize("python_path", [None, ":", ":/nowhere", "/nowhere::"])
def test_no_process_imports_from_the_current_folder(tmp_path: Path, python_path: str | None) -> None:
    """Every child of a server. Red when one is started with `python -m` alone, or with an empty entry in PYTHONPATH."""
    marker = poisoned(tmp_path)
    more = {} if python_path is None else {"PYTHONPATH": python_path}
    command = [sys.executable, "-P", "-c", "import os, sys; sys.path[:] = [p for p in sys.path if p != os.getcwd()]\n"]
    command[-1] += _WHOLE_SERVER
    first = _environment() if python_path is None else _environment(**more)
    if python_path is not None:  # the first process is the operator's; here only what it starts is looked at
        command[-1] = f"import os; os.environ['PYTHONPATH'] = {python_path!r}\n" + command[-1]
        first = _environment()
    done = subprocess.run(command, cwd=tmp_path, env=first, capture_output=True, text=True, check=False)
    assert not marker.exists(), marker.read_text()
    assert done.stdout == "served\n", done.stderr


def test_relevo_as_a_module_imports_nothing_from_the_current_folder(tmp_path: Path) -> None:
    """`random` and all that Python itself has not imported before it looks for `relevo`."""
    marker = tmp_path / "executed"
    for name in ("random", "asyncio", "typer", "msgspec", "tempfile", "secrets", "socket", "ssl", "logging"):
        (tmp_path / f"{name}.py").write_text(f"open({str(marker)!r}, 'a').write({name!r})\n")
    done = subprocess.run(
        [sys.executable, "-m", "relevo", "version"], cwd=tmp_path, env=_environment(), capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert not marker.exists(), marker.read_text()


def test_what_the_operator_adds_to_pythonpath_goes_on_working(tmp_path: Path) -> None:
    assert python_environment({"PYTHONPATH": f":{tmp_path}:"})["PYTHONPATH"] == str(tmp_path)
    assert "PYTHONPATH" not in python_environment({"PYTHONPATH": ":"})
    assert python_environment({"HOME": "/x"}) == {"HOME": "/x"}


def test_every_python_that_is_started_is_told_not_to_look_here() -> None:
    """Each `sys.executable` in the sources is followed by -P or -I."""
    starts = []
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.List | ast.Tuple | ast.Call | ast.JoinedStr):
                parts = (
                    node.args
                    if isinstance(node, ast.Call)
                    else node.values
                    if isinstance(node, ast.JoinedStr)
                    else node.elts
                )
                texts = [ast.unparse(part) for part in parts]
                starts += [
                    (path.name, texts)
                    for i, text in enumerate(texts)
                    if "sys.executable" in text and texts[i + 1 : i + 2] not in (["'-P'"], ["'-I'"])
                ]
    assert starts == []
