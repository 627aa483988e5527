"""Servers compared in turns: who is asked what and when, what a wrong or dead server does to the figures, ratios."""

from __future__ import annotations

import json
import os
import shlex
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from fake_openai_server import FakeOpenAI, served
from typer.testing import CliRunner

from relevo.bench.peers.report import OURS, PeersReport, TargetResult, peers_table
from relevo.bench.peers.run import PeersOptions, Target, compare_peers
from relevo.bench.peers.scenarios import COLD_START, Metric, Scenario, ScenarioKind
from relevo.bench.records import ClientRecord
from relevo.cli.bench import app
from relevo.core.errors import SettingsError, StartError
from relevo.telemetry.progress import SILENT

FAST = Metric("tokens/s", lower_is_better=False)
SLOW = Metric("ms", lower_is_better=True)


def options(tmp_path: Path, ours: Target, peers: Sequence[Target], **changes: Any) -> PeersOptions:
    plan: dict[str, Any] = {
        "model": None,
        "contexts": [9],
        "decode_len": 4,
        "prefill_lens": [12],
        "streams": [3],
        "stream_prompt_len": 10,
        "stream_output_len": 5,
        "rounds": 2,
        "repeats": 1,
        "start_timeout_s": 60.0,
        "log_dir": tmp_path / "logs",
        "seed": 1,
    }
    return PeersOptions(ours=ours, peers=peers, **{**plan, **changes})


async def compare(plan: PeersOptions) -> PeersReport:
    report = PeersReport()
    await compare_peers(plan, report, SILENT)
    return report


def server_command(**script: Any) -> str:
    """A process that serves a scripted FakeOpenAI on {port}."""
    folder = str(Path(__file__).parent)
    lines = (
        f"import sys; sys.path.insert(0, {folder!r})",
        "from fake_openai_server import FakeOpenAI, serve_for_ever",
        f"serve_for_ever(FakeOpenAI(**{script!r}), int(sys.argv[1]))",
    )
    program = "; ".join(lines)
    return shlex.join([sys.executable, "-c", program, "{port}"])


# ---- turns and prompts -----------------------------------------------------------------------------------------------


async def test_servers_take_turns_and_get_the_same_prompts(tmp_path: Path) -> None:
    """Red when all rounds of one server run before the next one's, or when a server gets prompts of its own."""
    asked: list[dict[str, Any]] = []
    ours, peer = FakeOpenAI(model="A", bodies=asked), FakeOpenAI(model="B", bodies=asked)
    async with served(ours) as our_url, served(peer) as peer_url:
        await compare(options(tmp_path, Target(name=OURS, url=our_url), [Target(name="b", url=peer_url)]))
    order = [body["model"] for body in asked]
    turns = [name for index, name in enumerate(order) if index == 0 or order[index - 1] != name]
    assert turns == ["A", "B", "A", "B"]
    by_server = {name: [body["prompt"] for body in asked if body["model"] == name] for name in "AB"}
    assert sorted(by_server["A"]) == sorted(by_server["B"])
    measured = [tuple(prompt) for prompt in by_server["A"]]
    assert len(set(measured)) == len(measured)  # nothing is ever asked twice: no prompt cache helps


async def test_every_metric_has_one_value_per_run(tmp_path: Path) -> None:
    async with served(FakeOpenAI()) as our_url, served(FakeOpenAI()) as peer_url:
        plan = options(tmp_path, Target(name=OURS, url=our_url), [Target(name="b", url=peer_url)], repeats=2)
        report = await compare(plan)
    assert not report.has_faults
    for result in report.results:
        assert {metric: len(values) for metric, values in result.values.items()} == {
            metric: 4 for metric in report.metrics if metric != COLD_START
        }
    assert all(row.ratio is not None and row.ratio > 0 for row in report.comparisons())


async def test_streams_of_a_scenario_are_sent_at_once(tmp_path: Path) -> None:
    """Red when they wait for one another: the fake answers none before three are there."""
    ours, peer = FakeOpenAI(), FakeOpenAI()
    async with served(ours) as our_url, served(peer) as peer_url:
        await compare(options(tmp_path, Target(name=OURS, url=our_url), [Target(name="b", url=peer_url)], rounds=1))
    assert (ours.max_in_flight, peer.max_in_flight) == (3, 3)


@pytest.mark.parametrize(
    ("script", "form"),
    [
        ({}, "token ids"),
        ({"takes_token_ids": False}, "text"),
        ({"takes_completions": False}, "chat"),
    ],
)
async def test_a_peer_is_asked_in_the_form_it_understands(tmp_path: Path, script: dict[str, Any], form: str) -> None:
    async with served(FakeOpenAI()) as our_url, served(FakeOpenAI(**script)) as peer_url:
        plan = options(tmp_path, Target(name=OURS, url=our_url), [Target(name="b", url=peer_url)], rounds=1)
        report = await compare(plan)
    assert report.result("b").prompt_form == form
    assert not report.has_faults
    assert any("chat only" in note for note in report.notes()) == (form == "chat")


async def test_prompt_caches_are_switched_off_where_there_is_a_field_for_it(tmp_path: Path) -> None:
    llama, other = FakeOpenAI(owned_by="llamacpp"), FakeOpenAI()
    async with served(FakeOpenAI()) as our_url, served(llama) as llama_url, served(other) as other_url:
        peers = [Target(name="llama", url=llama_url), Target(name="c", url=other_url, extra={"use_cache": 0})]
        await compare(options(tmp_path, Target(name=OURS, url=our_url), peers, rounds=1))
    assert all(body["cache_prompt"] is False for body in llama.bodies)
    assert all(body["use_cache"] == 0 and "cache_prompt" not in body for body in other.bodies)
    assert all(body["ignore_eos"] is True for body in llama.bodies + other.bodies)


async def test_cached_prompt_tokens_are_told(tmp_path: Path) -> None:
    async with served(FakeOpenAI()) as our_url, served(FakeOpenAI(num_cached_tokens=3)) as peer_url:
        plan = options(tmp_path, Target(name=OURS, url=our_url), [Target(name="b", url=peer_url)], rounds=1)
        report = await compare(plan)
    assert any("b took 15 prompt tokens from a cache" in note for note in report.notes())  # 5 requests


# ---- servers that fail -----------------------------------------------------------------------------------------------


async def test_an_answer_of_the_wrong_length_is_never_a_figure(tmp_path: Path) -> None:
    """One token short from the first measured request on: the probe was answered in full."""

    class ShortLater(FakeOpenAI):
        def _usage(self, body: dict[str, Any], num_tokens: int) -> dict[str, Any]:
            self.num_missing_tokens = 1
            return super()._usage(body, num_tokens)

    async with served(FakeOpenAI()) as our_url, served(ShortLater()) as peer_url:
        plan = options(tmp_path, Target(name=OURS, url=our_url), [Target(name="b", url=peer_url)], rounds=1)
        report = await compare(plan)
    assert report.result("b").values == {}
    assert "3 output tokens instead of 4" in report.result("b").faults[0]
    assert all(row.best_peer is None and row.ratio is None for row in report.comparisons())
    assert len(report.result(OURS).values) == len(report.metrics) - 1  # all but the cold start


async def test_a_peer_that_gives_too_few_tokens_in_every_form_is_left_out(tmp_path: Path) -> None:
    async with served(FakeOpenAI()) as our_url, served(FakeOpenAI(num_missing_tokens=1)) as peer_url:
        plan = options(tmp_path, Target(name=OURS, url=our_url), [Target(name="b", url=peer_url)], rounds=1)
        report = await compare(plan)
    (fault,) = report.result("b").faults
    assert "token ids: 2 output tokens instead of 3" in fault
    assert "chat: 2 output tokens instead of 3" in fault


async def test_a_started_peer_that_dies_is_reported_and_the_others_go_on(tmp_path: Path) -> None:
    """It dies in its third scenario; what it did before stays, and the peer after it has its turn."""
    async with served(FakeOpenAI()) as our_url:
        dying = Target(name="dying", command=server_command(exits_at_request=5))
        living = Target(name="living", command=server_command())
        plan = options(tmp_path, Target(name=OURS, url=our_url), [dying, living], rounds=1)
        report = await compare(plan)
    dead, alive = report.result("dying"), report.result("living")
    assert dead.faults and "decode at 9 tokens" not in dead.faults[0]
    assert len(dead.values[COLD_START]) == len(alive.values[COLD_START]) == 1
    assert not alive.faults and len(alive.values) == len(report.metrics)
    assert all(row.best_peer in ("living", "dying") for row in report.comparisons())


async def test_a_peer_that_does_not_start_is_reported_with_its_log(tmp_path: Path) -> None:
    async with served(FakeOpenAI()) as our_url:
        broken = Target(name="b", command=shlex.join([sys.executable, "-c", "print('no weights'); exit(3)", "{port}"]))
        absent = Target(name="c", command="no-such-program-anywhere --port {port}")
        plan = options(tmp_path, Target(name=OURS, url=our_url), [broken, absent], rounds=1)
        report = await compare(plan)
    assert "status 3" in report.result("b").faults[0] and "no weights" in report.result("b").faults[0]
    assert "cannot run no-such-program-anywhere" in report.result("c").faults[0]


async def test_a_taken_port_is_never_measured_instead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody took the port in between: red when that server's answers would count as the peer's."""
    async with served(FakeOpenAI()) as our_url, served(FakeOpenAI()) as squatter_url:
        port = int(squatter_url.rsplit(":", 1)[1])
        monkeypatch.setattr("relevo.bench.peers.run.free_port", lambda: port)
        plan = options(tmp_path, Target(name=OURS, url=our_url), [Target(name="b", command=server_command())], rounds=1)
        report = await compare(plan)
    assert report.result("b").faults == [
        f"port {port} is taken: another server would be measured instead; end it first"
    ]
    assert report.result("b").values == {}


async def test_without_our_own_server_there_is_no_comparison(tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        nobody = f"http://127.0.0.1:{probe.getsockname()[1]}"
        async with served(FakeOpenAI()) as peer_url:
            plan = options(tmp_path, Target(name=OURS, url=nobody), [Target(name="b", url=peer_url)])
            with pytest.raises(StartError, match="cannot reach"):
                await compare(plan)


@pytest.mark.parametrize(
    ("peers", "words"),
    [
        ([], "no server to compare with"),
        ([Target(name="a", url="x"), Target(name="a", url="y")], "two servers are called a"),
        ([Target(name="a", command="serve --port 80")], "no {port}"),
    ],
)
def test_a_plan_that_cannot_work_is_refused(tmp_path: Path, peers: list[Target], words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        options(tmp_path, Target(name=OURS, url="x"), peers).check()


# ---- figures ---------------------------------------------------------------------------------------------------------


def record(sent_s: float, chunks_s: Sequence[float], max_tokens: int) -> ClientRecord:
    stamps = [round(at_s * 1e9) for at_s in chunks_s]
    return ClientRecord(
        index=0,
        num_wanted_input_tokens=100,
        max_tokens=max_tokens,
        sent_at_ns=round(sent_s * 1e9),
        chunk_at_ns=stamps,
        finished_at_ns=stamps[-1],
        num_output_tokens=max_tokens,
    )


def test_figures_of_each_kind_of_scenario() -> None:
    decode = Scenario(kind=ScenarioKind.DECODE, prompt_len=100, max_tokens=5)
    assert decode.values([record(1.0, [1.5, 1.6, 1.7, 1.8, 1.9], 5)]) == pytest.approx((100.0,))
    # two tokens in one chunk: the time per token is that of the tokens, not of the chunks
    assert decode.values([record(1.0, [1.5, 1.7, 1.9], 5)]) == pytest.approx((100.0,))
    prefill = Scenario(kind=ScenarioKind.PREFILL, prompt_len=100, max_tokens=2)
    assert prefill.values([record(1.0, [1.5, 1.6], 2)]) == pytest.approx((200.0, 500.0))
    streams = Scenario(kind=ScenarioKind.STREAMS, prompt_len=100, max_tokens=3, num_streams=2)
    values = streams.values([record(1.0, [2.0, 2.1, 2.2], 3), record(1.0, [2.0, 2.5, 4.0], 3)])
    assert values[:3] == pytest.approx((2.0, 1000.0, 1000.0))
    assert values[3] == pytest.approx(300.0)  # of 100, 100, 500, 1500 ms
    for scenario in (decode, prefill, streams):
        assert len(scenario.metrics) == len(scenario.values([record(1.0, [2.0, 2.1], 2)]))


def test_another_variant_of_ours_is_no_peer() -> None:
    """Red when a variant is taken for the best peer, or has no ratio of its own."""
    report = PeersReport(metrics=[FAST, SLOW])
    report.results += [
        TargetResult(name=OURS, values={FAST: [20.0], SLOW: [4.0]}),
        TargetResult(name="relevo+int8", values={FAST: [40.0]}),
        TargetResult(name="x", values={FAST: [10.0], SLOW: [8.0]}),
    ]
    fast, slow = report.comparisons()
    assert (fast.best_peer, fast.ratios) == ("x", {OURS: 2.0, "relevo+int8": 4.0})
    assert (slow.best_peer, slow.ratios) == ("x", {OURS: 0.5})


def test_ratios_are_ours_over_the_best_peer() -> None:
    """The best is the largest of some metrics and the smallest of others; a peer without a value is no rival."""
    report = PeersReport(metrics=[FAST, SLOW, COLD_START])
    report.results = [
        TargetResult(name=OURS, values={FAST: [30.0, 10.0, 20.0], SLOW: [5.0]}),
        TargetResult(name="x", values={FAST: [5.0], SLOW: [10.0], COLD_START: [2.0]}),
        TargetResult(name="y", values={FAST: [8.0], SLOW: [20.0]}),
    ]
    fast, slow, cold = report.comparisons()
    assert (fast.best_peer, fast.ratio) == ("y", 2.5)
    assert (slow.best_peer, slow.ratio) == ("x", 0.5)
    assert (cold.best_peer, cold.ratio, cold.medians) == ("x", None, {"x": 2.0})
    assert json.loads(json.dumps(report.to_json()))["comparisons"][0]["ratio"] == 2.5
    assert peers_table(report)


# ---- the command -----------------------------------------------------------------------------------------------------


def bench_peers(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["peers", *arguments], env={"COLUMNS": "160"})


def test_the_command_starts_ends_and_compares(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    small = ["--contexts", "9", "--decode-len", "3", "--prefill-lens", "12", "--streams", "2", "--rounds", "2"]
    small += ["--stream-prompt-len", "8", "--stream-output-len", "3", "--repeats", "1", "--log-dir", str(tmp_path)]
    result = bench_peers(
        *("--relevo-command", server_command(), "--peer-command", f"other={server_command(owned_by='llamacpp')}"),
        *("--peer-body", 'other={"n_probs": 0}', *small, "--json", str(out)),
    )
    assert result.exit_code == 0, result.output
    for words in ("decode, context 9: ms/token", "2 streams: output tokens/s", "cold start", "cache_prompt=False"):
        assert words in result.output
    servers = json.loads(out.read_text())["report"]["servers"]
    assert [server["name"] for server in servers] == [OURS, "other"]
    assert all(len(server["values"][COLD_START.name]) == 2 for server in servers)
    assert servers[1]["extra"]["n_probs"] == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "no server to compare with"),
        (("--peer", "nonsense"), "NAME=VALUE"),
        (("--peer", "a=x", "--peer-body", "b={}"), "no peer is called"),
        (("--peer", "a=x", "--peer-body", "a=1"), "not a JSON object"),
        (("--peer", "a=x", "--contexts", "many"), "not a list of token counts"),
        (("--peer-command", "a=serve"), "no {port}"),
    ],
)
def test_mistakes_of_the_command_are_one_sentence(arguments: tuple[str, ...], words: str) -> None:
    result = bench_peers(*arguments)
    assert result.exit_code == 2
    assert "Traceback" not in result.output
    assert words in result.output


def test_a_terminated_comparison_leaves_no_server_behind(tmp_path: Path) -> None:
    """The peer never answers; red when SIGTERM ends the command and leaves the peer running, or is not
    heard because Ctrl-C is ignored."""
    started = tmp_path / "pid"
    hears = "signal.signal(signal.SIGINT, signal.SIG_DFL)"  # also when the shell of the tests ignores it
    lines = ("import os, sys, signal", hears, f"open({str(started)!r}, 'w').write(str(os.getpid()))", "signal.pause()")
    peer = shlex.join([sys.executable, "-c", "; ".join(lines), "{port}"])
    command = [sys.executable, "-m", "relevo", "bench", "peers", "--relevo-command", peer, "--peer", "b=http://x"]
    in_background = shlex.join(["exec", *command])  # where a shell has Ctrl-C ignored
    process = subprocess.Popen(
        ["bash", "-c", f"trap '' INT; {in_background}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    while not (started.exists() and started.read_text()):
        assert process.poll() is None
    process.terminate()
    assert process.wait(60) == 130
    with pytest.raises(ProcessLookupError):
        os.kill(int(started.read_text()), 0)
