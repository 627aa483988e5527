"""`make harness`: every client of `clients.py` does its task against a scripted server, three times: at first, again,
and while the decode worker is killed in the middle of the call.

Prints a table; --write puts it into docs/guides/agents.md."""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from clients import CLIENTS, Client
from pinned import Package, packages
from stack import Stack, stack
from task import AGAIN, FIRST, KILLED, ROUNDS, Round, script

GUIDE = Path(__file__).parents[2] / "docs/guides/agents.md"
HEADING = "## Agents that were tried\n"
RUN_S = 120.0
TOKENS_BEFORE_KILL = 60  # on the decode worker: in the middle of the call's markup
_SESSION = re.compile(r"session ([0-9a-f]{8}), by (\S+)")


@dataclass
class Outcome:
    """Of one client. `faults` by round; a round that is not there was not run."""

    client: Client
    version: str
    faults: dict[str, str] = field(default_factory=dict)  # empty text: it worked
    sessions: dict[str, list[tuple[str, str]]] = field(default_factory=dict)  # by round: (key, source) per request
    cached: dict[str, float] = field(default_factory=dict)  # by round: share of the prompts' tokens

    def session(self) -> str:
        """What named it, and for how long it was one; empty: not what was expected."""
        told = [pair for pairs in self.sessions.values() for pair in pairs]
        if {source for _, source in told} != {self.client.session}:
            return ""
        keys = [{key for key, _ in pairs} for pairs in self.sessions.values()]
        if any(len(each) != 1 for each in keys) and self.client.session != "content":
            return ""
        if self.client.session == "content":
            return "sends none"
        is_one = self.client.continues and len(set.union(*keys)) == 1
        if self.client.continues and not is_one:
            return ""
        return f"`{self.client.session.replace('body.', 'body ')}`"

    @property
    def is_good(self) -> bool:
        return len(self.faults) == len(ROUNDS) and not any(self.faults.values()) and self.session() != ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="of clients; all where none is given")
    parser.add_argument(
        "--cache", type=Path, default=Path.home() / ".cache/relevo-harness", help="of installed clients"
    )
    parser.add_argument("--write", action="store_true", help="the table into docs/guides/agents.md")
    parser.add_argument("--verbose", action="store_true", help="what clients print")
    given = parser.parse_args()
    chosen = [client for client in CLIENTS if not given.names or client.name in given.names]
    pinned = packages()
    outcomes = [drive(client, pinned[client.package], given.cache, given.verbose) for client in chosen]
    table = table_of(outcomes)
    print(table)
    if given.write:
        write(table)
    return 0 if all(outcome.is_good for outcome in outcomes) else 1


def drive(client: Client, package: Package, cache: Path, is_verbose: bool) -> Outcome:
    outcome = Outcome(client, package.version)
    try:
        program = package.command(cache, client.program)
        with tempfile.TemporaryDirectory(prefix="relevo-harness-") as folder:
            _rounds(client, program, Path(folder), outcome, is_verbose)
    except Exception:
        traceback.print_exc()
        outcome.faults["start"] = "see above"
    for name, fault in outcome.faults.items():
        print(f"{client.name}, {name}: {fault or 'works'}", flush=True)
    print(f"{client.name}, sessions: {outcome.sessions}, cached: {outcome.cached}", flush=True)
    return outcome


def _rounds(client: Client, program: str, folder: Path, outcome: Outcome, is_verbose: bool) -> None:
    home, project, rules = folder / "home", folder / "project", folder / "script.json"
    home.mkdir()
    project.mkdir()
    rules.write_text(script(client.lines))
    with stack("fake", "--script", str(rules), "--topology", "1p1d", "--log-level", "debug") as server:
        client.configure(home, server.url)
        env = _environment(client, home, server.url)
        if client.setup:
            setup = [argument.format(url=server.url) for argument in client.setup]
            subprocess.run([program, *setup], cwd=project, env=env, check=True, timeout=RUN_S, stdin=subprocess.DEVNULL)
        for each in ROUNDS:
            begin, before = len(server.log), _prompt_tokens(server)
            fault, output = _round(client, each, [program, *client.arguments(each, project)], project, env, server)
            outcome.faults[each.name] = fault
            num_prompt, num_cached = (now - then for now, then in zip(_prompt_tokens(server), before, strict=True))
            outcome.cached[each.name] = num_cached / max(1, num_prompt)
            outcome.sessions[each.name] = _SESSION.findall("".join(server.log[begin:]))
            if is_verbose or fault:
                print(f"---- {client.name}, {each.name}\n{output[-6000:]}", flush=True)


def _prompt_tokens(server: Stack) -> tuple[int, int]:
    """All that the ledger has, and how many of them were cached."""
    total = server.get("/v1/usage?group_by=model")["total"]
    return int(total["prompt_tokens"]), int(total["cached_tokens"])


def _environment(client: Client, home: Path, url: str) -> dict[str, str]:
    """Nothing of ours but the path, so that no other configuration or key is found."""
    own = {name: value.format(url=url) for name, value in client.environment.items()}
    return {"HOME": str(home), "PATH": os.environ["PATH"], "TERM": "dumb", "NO_COLOR": "1", "LANG": "C.UTF-8", **own}


def _round(
    client: Client, each: Round, command: list[str], project: Path, env: dict[str, str], server: Stack
) -> tuple[str, str]:
    """What went wrong (empty: nothing), and what was printed."""
    begin = len(server.log)
    killer = _Killer(server) if each.name == KILLED else None
    process = subprocess.Popen(
        command,
        cwd=project,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=RUN_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        output, _ = process.communicate()
        return f"not done after {RUN_S:g} s", output
    finally:
        if killer is not None:
            killer.stop()
    if process.returncode:
        return f"exit status {process.returncode}", output
    said = (project / client.writes).read_text() if client.writes else output
    if each.last_word not in re.sub(r"\s+", " ", said):
        return f"{each.last_word!r} did not come", output
    if killer is not None and not (killer.has_killed and was_continued("".join(server.log[begin:]))):
        return "no worker was killed in the middle of an answer that went on", output
    return "", output


def was_continued(log: str) -> bool:
    """Whether a request that had a decode worker got another one after a worker was gone."""
    before, _, after = log.partition(" is gone:")
    placed, again = (set(re.findall(r"([0-9a-f]{32}): decode on", text)) for text in (before, after))
    return not placed.isdisjoint(again)


class _Killer:
    """kill -9 of the decode worker as soon as it wrote some tokens of a request that still runs."""

    def __init__(self, server: Stack) -> None:
        self.has_killed = False
        self._server = server
        self._is_over = threading.Event()
        server.wait_ready()
        self._pid = server.pids()["decode-0"]
        self._before = server.metric("relevo:decode_tokens_total", role="decode")
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        while not self._is_over.wait(0.05):
            written = self._server.metric("relevo:decode_tokens_total", role="decode") - self._before
            if written >= TOKENS_BEFORE_KILL and self._server.metric("vllm:num_requests_running"):
                os.kill(self._pid, signal.SIGKILL)
                self.has_killed = True
                return

    def stop(self) -> None:
        self._is_over.set()
        self._thread.join()


def table_of(outcomes: list[Outcome]) -> str:
    def cell(outcome: Outcome, name: str) -> str:
        return {None: "not run", "": "yes"}.get(outcome.faults.get(name), "**no**")

    def row(outcome: Outcome) -> str:
        again = cell(outcome, AGAIN) + (", continued" if outcome.client.continues else "")
        cached = f"{outcome.cached.get(AGAIN, 0.0):.1%}".replace("%", " %")
        cells = (cell(outcome, FIRST), again, cached, cell(outcome, KILLED), outcome.session() or "**not known**")
        return f"| {outcome.client.name} {outcome.version} | {' | '.join(cells)} |\n"

    names = "agent", "works", "twice", "then cached", "`kill -9` in mid-call", "names its session by"
    return f"| {' | '.join(names)} |\n{'|---' * len(names)}|\n" + "".join(map(row, outcomes))


def write(table: str) -> None:
    """In place of what follows the heading up to the next one."""
    before, heading, rest = GUIDE.read_text().partition(HEADING)
    if not heading:
        raise SystemExit(f"{GUIDE} has no {HEADING.strip()!r}")
    _, following, after = rest.partition("\n## ")
    day = datetime.now(UTC).strftime("%Y-%m-%d")
    said = f"\n`make harness` on {day}, Node {_node()}, `relevo serve fake --script … --topology 1p1d`:\n\n{table}"
    GUIDE.write_text(before + HEADING + said + following + after)


def _node() -> str:
    return subprocess.run(["node", "--version"], capture_output=True, text=True, check=True).stdout.strip().lstrip("v")


if __name__ == "__main__":
    started = time.monotonic()
    status = main()
    print(f"{time.monotonic() - started:.0f} s", file=sys.stderr)
    sys.exit(status)
