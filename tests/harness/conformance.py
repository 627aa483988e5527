"""`make conformance`: suites that others wrote, against a scripted server and the embedded model, both split.

Owns which of their demands are known not to be met, and why. A failure that is not known fails the run, and so does a
known one that passes: then its reason is old. Prints a table; --write puts it into docs/guides/clients.md."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pinned import Package, packages
from stack import Stack, stack

FILES = Path(__file__).parent / "suites"
GUIDE = Path(__file__).parents[2] / "docs/guides/clients.md"
HEADING = "## Suites that were run\n"
RUN_S = 900.0
FORMATS = ("openai-chat", "open-responses", "anthropic")
_SCRIPTED = ("fake", "--script", str(FILES / "answers.toml"), "--chat-template", str(FILES / "thoughts.jinja"))
SERVERS = {"scripted": (*_SCRIPTED, "--topology", "1p1d"), "smollm2": ("smollm2", "--topology", "1p1d")}

_IMAGES = "the models take text: an image is a 400 that says so"
_NO_MODEL = "a server of one model takes a request that names none"
_THOUGHTS = "OpenAI's `response.reasoning_text.delta` is not in this suite's copy of Open Responses"
_ROLES = "a role that is none of OpenAI's is the chat template's to take"
_COMPACT = "there is no `/v1/responses/compact`"
KNOWN = {  # by server ("" is any) and what a test's name begins with
    ("", "chat-image-input"): _IMAGES,
    ("", "image-input"): _IMAGES,
    ("", "anth-image-input"): _IMAGES,
    ("", "compact-response"): _COMPACT,
    ("", "chat-error-handling"): _NO_MODEL,
    ("scripted", "streaming-response"): _THOUGHTS,
    ("scripted", "streaming-usage"): _THOUGHTS,
    ("", "test_malformed_request_rejected[non_streaming-messages_role_invalid]"): _ROLES,
    ("", "test_malformed_request_rejected[streaming-messages_role_invalid]"): _ROLES,
}

NOTE = """
`make conformance` installs the suites, pinned, below `~/.cache/relevo-conformance` (beam-verifier needs Python 3.12 or
newer on the path) and fails on a failure that is not known, and on a known one that passes. `CONFORMANCE=smollm2` runs
one server only. beam-verifier demands thoughts and right answers of every turn, so it runs against the
[scripted server](scripted-engine.md) alone; llm-comply skips tests of reasoning for models it does not know by name.
"""


@dataclass(frozen=True)
class Verdict:
    """Of one test of a suite."""

    name: str
    outcome: str  # "passed", "failed", "skipped"; the suite's other words count as failed
    said: str


@dataclass(frozen=True)
class Outcome:
    """Of one suite against one server."""

    suite: str
    server: str
    verdicts: list[Verdict]

    def count(self, outcome: str) -> int:
        return sum(verdict.outcome == outcome for verdict in self.verdicts)

    def known(self) -> dict[str, str]:
        """Reasons of failures, by test."""
        failed = [verdict.name for verdict in self.verdicts if verdict.outcome == "failed"]
        reasons = {name: reason_of(self.server, name) for name in failed}
        return {name: reason for name, reason in reasons.items() if reason is not None}

    def surprises(self) -> list[str]:
        """What failed and is not known, or is known and passed. Nothing at all having run is one, too."""
        known = self.known()
        found = [f"{v.name}: {v.said}" for v in self.verdicts if v.outcome == "failed" and v.name not in known]
        found += [
            f"{v.name} passes now: {reason}"
            for v in self.verdicts
            if v.outcome == "passed" and (reason := reason_of(self.server, v.name)) is not None
        ]
        return found if self.verdicts else ["no test ran"]


def reason_of(server: str, test: str) -> str | None:
    return KNOWN.get((server, test)) or KNOWN.get(("", test))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help=f"of servers: {', '.join(SERVERS)}; both where none is given")
    parser.add_argument(
        "--cache", type=Path, default=Path.home() / ".cache/relevo-conformance", help="of installed suites"
    )
    parser.add_argument("--write", action="store_true", help="the table into docs/guides/clients.md")
    given = parser.parse_args()
    pinned, outcomes = packages(FILES / "versions.txt"), []
    for name in given.names or SERVERS:
        with stack(*SERVERS[name]) as server:
            for outcome in suites_of(name, server, pinned, given.cache):
                outcomes.append(outcome)
                for each in outcome.surprises():
                    print(f"{outcome.suite}, {name}: {each}", flush=True)
    table = table_of(outcomes)
    print(table)
    if given.write:
        write(table)
    return 1 if any(outcome.surprises() for outcome in outcomes) else 0


def suites_of(name: str, server: Stack, pinned: dict[str, Package], cache: Path) -> Iterator[Outcome]:
    """beam-verifier demands thoughts and right answers of every turn: only a script has both here."""
    comply = pinned["llm-comply"]
    for each in FORMATS:
        verdicts = run_comply(comply.command(cache, "llm-comply"), server, each)
        yield Outcome(f"llm-comply {comply.version}, {each}", name, verdicts)
    if name == "scripted":
        beam = pinned["beam-verifier"]
        yield Outcome(f"beam-verifier {beam.version}", name, run_beam(beam.command(cache, "beam-verifier"), server))


def run_comply(program: str, server: Stack, form: str) -> list[Verdict]:
    told = _run(
        [program, "--format", form, "-u", f"{server.url}/v1", "-k", "none-needed", "-m", server.model, "--json"]
    )
    return [comply_verdict(test) for test in json.loads(told)["results"]]


def comply_verdict(test: dict[str, Any]) -> Verdict:
    """With warnings it passes there: an endpoint that is not there at all gets no more than those. Here it failed."""
    said = test.get("errors") or test.get("warnings") or []
    is_good = test["status"] == "skipped" or (test["status"] == "passed" and not said)
    return Verdict(test["id"], test["status"] if is_good else "failed", "; ".join(said)[:500])


def run_beam(program: str, server: Stack) -> list[Verdict]:
    with tempfile.TemporaryDirectory(prefix="relevo-conformance-") as folder:
        where = ("--base-url", f"{server.url}/v1", "--model-name", server.model)
        finds_its_options = "--confcutdir=/"  # they are in a folder above the one that it runs
        said = _run([program, "verify", *where, finds_its_options], Path(folder))
        reports = list(Path(folder).glob(".runs/*/verify_report.json"))
        if not reports:
            raise SystemExit(f"beam-verifier wrote no report:\n{said[-2000:]}")
        tests = json.loads(reports[0].read_text())["tests"]
    return [Verdict(test["nodeid"].rpartition("::")[2], test["outcome"], _crash(test)) for test in tests]


def _crash(test: dict[str, Any]) -> str:
    return " ".join(str((test.get("call") or {}).get("crash", {}).get("message", "")).split())[:500]


def _run(command: list[str], folder: Path | None = None) -> str:
    """Its output. Suites exit with 1 where a test fails. Nothing of our own environment is theirs to import."""
    environment = {"HOME": str(Path.home()), "PATH": os.environ["PATH"], "LANG": "C.UTF-8"}
    ended = subprocess.run(
        command,
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=RUN_S,
    )
    return ended.stdout


def table_of(outcomes: list[Outcome]) -> str:
    def row(outcome: Outcome) -> str:
        reasons = "; ".join(dict.fromkeys(outcome.known().values()))
        new = len(outcome.surprises())
        told = "; ".join(filter(None, [f"**{new} not known**" if new else "", reasons]))
        counts = " | ".join(str(outcome.count(each)) for each in ("passed", "failed", "skipped"))
        return f"| {outcome.suite} | {outcome.server} | {counts} | {told} |\n"

    head = "| suite | server | passed | failed | skipped | why |\n|---|---|---|---|---|---|\n"
    return head + "".join(map(row, outcomes))


def write(table: str) -> None:
    """In place of what follows the heading up to the next one."""
    before, heading, rest = GUIDE.read_text(encoding="utf-8").partition(HEADING)
    if not heading:
        raise SystemExit(f"{GUIDE} has no {HEADING.strip()!r}")
    _, following, after = rest.partition("\n## ")
    day = datetime.now(UTC).strftime("%Y-%m-%d")
    said = f"\n`make conformance` on {day}, each server with `--topology 1p1d`:\n\n{table}{NOTE}"
    GUIDE.write_text(before + HEADING + said + following + after, encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
