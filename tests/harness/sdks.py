"""`make sdks`: every program of examples/sdks runs against a scripted server, each with the client library it shows.

Installs the libraries, pinned, into one cache folder; prints a table; --write puts it into docs/guides/clients.md."""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

from stack import stack

ROOT = Path(__file__).parents[2]
PROGRAMS = ROOT / "examples/sdks"
GUIDE = ROOT / "docs/guides/clients.md"
HEADING = "## Client libraries that were tried\n"
RUN_S = 180.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="of programs; all where none is given")
    parser.add_argument("--cache", type=Path, default=Path.home() / ".cache/relevo-sdks", help="of installed libraries")
    parser.add_argument("--write", action="store_true", help="the table into docs/guides/clients.md")
    given = parser.parse_args()
    programs = sorted(path for path in (*PROGRAMS.glob("*.py"), *PROGRAMS.glob("*.mjs")))
    chosen = [path for path in programs if not given.names or path.stem in given.names]
    install(given.cache)
    with stack("fake", "--script", str(PROGRAMS / "answers.toml"), "--topology", "1p1d") as server:
        outcomes = {path: run(path, given.cache, server.url) for path in chosen}
    table = table_of(outcomes)
    print(table)
    if given.write:
        page = GUIDE.read_text()
        begin = page.index(HEADING) + len(HEADING)
        told = (
            f"\n`make sdks` on {datetime.now(UTC):%Y-%m-%d}, `relevo serve fake --script … --topology 1p1d`:\n\n{table}"
        )
        GUIDE.write_text(page[:begin] + told)
    return 1 if any(outcomes.values()) else 0


def install(cache: Path) -> None:
    """What the two lists pin, again where one has changed."""
    lists = [PROGRAMS / "requirements.txt", PROGRAMS / "package.json"]
    wanted = "".join(path.read_text() for path in lists)
    done = cache / "installed"
    if done.exists() and done.read_text() == wanted:
        return
    shutil.rmtree(cache, ignore_errors=True)
    cache.mkdir(parents=True)
    subprocess.run([sys.executable, "-m", "venv", str(cache / "python")], check=True)
    pip = [str(cache / "python/bin/python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "-r", str(lists[0])], check=True)
    shutil.copy(lists[1], cache)
    subprocess.run(["npm", "install", "--no-audit", "--no-fund", "--loglevel=error"], cwd=cache, check=True)
    done.write_text(wanted)


def run(path: Path, cache: Path, url: str) -> str:
    """What went wrong; empty: nothing."""
    known = {"PATH": os.environ["PATH"], "HOME": str(cache), "LANG": "C.UTF-8"}
    openai = {"OPENAI_BASE_URL": f"{url}/v1", "OPENAI_API_KEY": "none-needed"}
    anthropic = {"ANTHROPIC_BASE_URL": url, "ANTHROPIC_API_KEY": "none-needed"}
    program = cache / path.name  # beside what it imports
    shutil.copy(path, program)
    command = [str(cache / "python/bin/python") if path.suffix == ".py" else "node", str(program)]
    try:
        ended = subprocess.run(
            command, env=known | openai | anthropic, cwd=cache, capture_output=True, text=True, timeout=RUN_S
        )
    except subprocess.TimeoutExpired:
        fault = f"not done after {RUN_S:g} s"
    else:
        fault = ended.stderr.strip() or f"exit status {ended.returncode}" if ended.returncode else ""
    print(f"{path.stem}: {fault or 'works'}", flush=True)
    return fault


def table_of(outcomes: dict[Path, str]) -> str:
    head = "| program | shows | works |\n|---|---|---|\n"
    return head + "".join(
        f"| [{path.stem}](../../examples/sdks/{path.name}) | {_purpose(path)} | {'**no**' if fault else 'yes'} |\n"
        for path, fault in outcomes.items()
    )


def _purpose(path: Path) -> str:
    """The first sentence of the program."""
    text = re.sub(r"\s*(?://)?\s+", " ", path.read_text().lstrip('"/ '))
    return text.partition(". ")[0].partition('."""')[0]


if __name__ == "__main__":
    sys.exit(main())
