"""What must never be imported where. Red when a decision starts to read clocks, draw randomness or do I/O."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "relevo"
IMPURE = {
    "asyncio", "aiohttp", "logging", "multiprocessing", "os", "pathlib", "random", "secrets", "selectors", "shutil",
    "socket", "subprocess", "sys", "tempfile", "threading", "time", "torch", "numpy", "uuid",
}  # fmt: skip
ALLOWED = {("policy", "random"): "type of the generator that callers pass in", ("workload", "random"): "as in policy"}


def _imports(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            names.add(node.module.split(".")[0])
    return names


def _files(*packages: str) -> list[Path]:
    return sorted(path for package in packages for path in (SOURCE / package).rglob("*.py"))


@pytest.mark.parametrize("path", _files("core", "policy"), ids=lambda p: str(p.relative_to(SOURCE)))
def test_words_and_decisions_do_no_io(path: Path) -> None:
    package = path.relative_to(SOURCE).parts[0]
    forbidden = {name for name in _imports(path) & IMPURE if (package, name) not in ALLOWED}
    assert not forbidden, f"{path.name} imports {sorted(forbidden)}; pass time and randomness in, return effects"


@pytest.mark.parametrize("path", _files("policy", "workload"), ids=lambda p: str(p.relative_to(SOURCE)))
def test_randomness_comes_from_the_caller(path: Path) -> None:
    """`random.Random` may be named as a type or seeded; the module's global generator may not be used."""
    calls = [
        node.func.attr
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and isinstance(node.func.value, ast.Name)
        and node.func.value.id == "random"
    ]
    assert set(calls) <= {"Random"}


@pytest.mark.parametrize("path", _files("core"), ids=lambda p: str(p.relative_to(SOURCE)))
def test_words_need_the_standard_library_only(path: Path) -> None:
    assert _imports(path) <= set(sys.stdlib_module_names) | {"relevo"}


def test_torch_lives_in_one_folder() -> None:
    offenders = [
        str(path.relative_to(SOURCE))
        for path in SOURCE.rglob("*.py")
        if "torch" in _imports(path) and "engine/ops/torch" not in path.as_posix()
    ]
    assert offenders == []


def test_families_and_their_decoders_are_known_to_the_table_only() -> None:
    """Red when a loader, the worker or a benchmark names a family: then a new one has to be told to it too."""
    names = re.compile(r"""models\.decoder|\bDecoder\b|["'](llama|mistral|qwen2|qwen3)["']""")
    offenders = [
        str(path.relative_to(SOURCE))
        for path in _files("engine", "build", "bench")
        if "engine/models" not in path.as_posix()
        and "tokenizer" not in path.name  # whose kinds have names of their own, of which some are the same
        and names.search(path.read_text(encoding="utf-8"))
    ]
    assert offenders == []


def test_only_cli_and_build_read_settings() -> None:
    readers = [
        path.relative_to(SOURCE).parts[0]
        for path in SOURCE.rglob("*.py")
        if path.name != "settings.py" and "relevo.settings" in path.read_text(encoding="utf-8")
    ]
    assert set(readers) <= {"cli", "build"}


@pytest.mark.parametrize(
    "module", ["relevo.build.gateway", "relevo.build.serve", "relevo.cli.main", "relevo.bench.serve.run"]
)
def test_torch_is_not_loaded_where_nothing_is_computed(module: str) -> None:
    """The gateway, the supervisor and the bench install and start without it. Red when an import drags it in."""
    code = f"import sys, {module}; sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
