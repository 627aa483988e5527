"""`relevo bench` as a person types it: tables, JSON, and one sentence with exit status 2 for a mistake."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from fake_openai_server import FakeOpenAI, served_in_thread
from typer.testing import CliRunner, Result

from relevo.bench.html.file import read_data
from relevo.bench.transport.run import TransportKind, measure_transport, parse_bytes
from relevo.build.trial_nodes import trial_doors
from relevo.cli.bench import app
from relevo.core.errors import SettingsError
from relevo.core.kv import KVGroup, KVLayout

SMALL = ["--num-requests", "5", "--input-len", "10-20", "--output-len", "3", "--num-warmup", "1"]


def bench(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments), env={"COLUMNS": "160"})


def refused(result: Result) -> str:
    """The one sentence; fails on a traceback or another exit status."""
    assert result.exit_code == 2
    assert result.exception is None or isinstance(result.exception, SystemExit)
    assert "Traceback" not in result.output
    return result.output


def test_serve_prints_tables_and_writes_every_record(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    with served_in_thread(FakeOpenAI(num_cached_tokens=2, statuses=[200, 200, 503])) as url:
        limits = ["--slo-ttft-ms", "60000", "--slo-itl-ms", "60000"]
        result = bench("serve", url, "--request-rate", "500", *SMALL, *limits, "--json", str(out), "--ignore-eos")
    assert result.exit_code == 0, result.output
    for words in ("TTFT (client)", "ITL", "TPOT", "E2E", "goodput", "http_503: 1", "80.0 % of all sent"):
        assert words in result.output
    body = json.loads(out.read_text())
    assert (body["report"]["num_completed"], body["report"]["num_failed"]) == (4, 1)
    assert body["report"]["num_cached_tokens"] == 8
    assert body["model"] == "fake-model"
    assert {"command", "versions", "cpu_model", "python"} <= set(body["environment"])
    done = [request for request in body["requests"] if request["outcome"] == "completed"]
    assert len(body["requests"]) == 5
    assert all(len(request["itl_s"]) == 2 and request["num_output_tokens"] == 3 for request in done)
    assert all(10 <= request["num_prompt_tokens"] <= 20 for request in done)


def test_serve_without_a_rate_is_one_waiting_client() -> None:
    fake = FakeOpenAI()
    with served_in_thread(fake) as url:
        result = bench("serve", url, *SMALL, "--endpoint", "completions")
    assert result.exit_code == 0, result.output
    assert fake.max_in_flight == 1
    assert len(fake.bodies) == 6


def test_serve_writes_a_page_with_its_data_and_without_its_key(tmp_path: Path) -> None:
    """Red when the key reaches the page: typed, or repeated by the server in an error."""
    out, key = tmp_path / "load.html", "sk-right-123"
    limits = ["--slo-ttft-ms", "60000"]
    with served_in_thread(FakeOpenAI(api_key=key)) as url:
        result = bench("serve", url, *SMALL, *limits, "--api-key", key, "--report", str(out))
    assert result.exit_code == 0, result.output
    page, data = out.read_text(), json.loads(read_data(out))
    assert f"Load test of fake-model at {url}" in page and "5 of 5 requests were completed" in page
    assert "60000 ms, the objective" in page
    for words in ("TTFT over time", "Requests in flight", "TTFT (client)", "--slo-ttft-ms", "python", "kernel"):
        assert words in page
    assert len(data["requests"]) == 5 and data["partial"] is None and "Partial" not in page
    assert key not in page and key not in json.dumps(data)
    assert "<td>***</td>" in page
    assert [path.name for path in tmp_path.iterdir()] == ["load.html"]


def test_a_report_that_cannot_be_written_is_refused_before_the_load(tmp_path: Path) -> None:
    """Red when an hour of measuring ends with a folder that is not there."""
    fake = FakeOpenAI()
    with served_in_thread(fake) as url:
        for path in (tmp_path / "none" / "x.html", tmp_path, Path("/dev/null"), tmp_path / ("x" * 300)):
            assert "cannot write" in refused(bench("serve", url, *SMALL, "--report", str(path)))
    assert fake.bodies == []
    assert list(tmp_path.iterdir()) == []


def test_mistakes_are_one_sentence() -> None:
    with served_in_thread(FakeOpenAI(api_key="right")) as url:
        assert "--api-key" in refused(bench("serve", url, *SMALL))
        assert "it serves fake-model" in refused(bench("serve", url, *SMALL, "--api-key", "right", "--model", "other"))
        assert "give one of them" in refused(bench("serve", url, "--request-rate", "1", "--concurrency", "1"))
    assert "cannot reach" in refused(bench("serve", url, *SMALL))
    assert "cannot reach" in refused(bench("handoff", url))
    assert "cannot reach" in refused(bench("interference", "--url", f"1p1d={url}"))
    assert "is not a length" in refused(bench("serve", url, "--input-len", "many"))
    assert "NAME=URL" in refused(bench("interference", "--url", "nonsense"))
    assert "is not a size" in refused(bench("transport", "--bytes", "much"))
    assert "cannot read the trace" in refused(bench("serve", url, "--trace", "no-such-file"))


def test_a_chat_prompt_that_cannot_be_made_is_one_sentence_in_a_closed_loop() -> None:
    """The maker of prompts runs beside the clients there; red when its error comes out as a group with a traceback."""
    with served_in_thread(FakeOpenAI()) as url:
        assert "too short" in refused(bench("serve", url, "--input-len", "2", "--num-warmup", "0"))


def test_a_load_of_failures_alone_ends_with_status_one() -> None:
    with served_in_thread(FakeOpenAI(statuses=[500] * 5)) as url:
        result = bench("serve", url, *SMALL[:-1], "0")
    assert result.exit_code == 1
    assert "http_500: 5" in result.output


def test_ctrl_c_reports_what_is_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The interrupt comes with the fourth request; the three before it are in the report."""
    from relevo.bench.serve import run as serve_module

    real = serve_module.run_closed_loop

    async def interrupted(requests: object, send: object, records: list[object], **limits: object) -> None:
        async def first_three() -> object:
            async for planned in requests:  # type: ignore[attr-defined]
                if len(records) == 3:
                    raise KeyboardInterrupt
                yield planned

        await real(first_three(), send, records, **limits)  # type: ignore[arg-type]

    monkeypatch.setattr(serve_module, "run_closed_loop", interrupted)
    out = tmp_path / "x.html"
    with served_in_thread(FakeOpenAI()) as url:
        result = bench("serve", url, *SMALL, "--report", str(out))
    assert result.exit_code == 130
    assert "3 / 0 / 0" in result.output
    assert "interrupted" in result.output
    assert "Partial: it was interrupted" in out.read_text() and "3 of 3 requests were completed" in out.read_text()
    assert len(json.loads(read_data(out))["requests"]) == 3


def test_handoff_and_interference_write_json(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    fake = FakeOpenAI(metrics=["relevo:handoff_seconds_count 0\n"], token_delay_s=0.001)
    with served_in_thread(fake) as url:
        result = bench("handoff", url, "--prompt-lens", "8,16", "--num-repeats", "1", "--json", str(out))
        assert result.exit_code == 0, result.output
        assert "no handoff" in result.output
        assert [cost["prompt_len"] for cost in json.loads(out.read_text())["handoffs"]] == [8, 16]
        urls = ["--url", f"1p1d={url}", "--url", f"unified-64={url}", "--rounds", "1", "--duration-s", "0.2"]
        result = bench("interference", *urls, "--prompt-len", "16", "--num-rate-prompts", "2", "--json", str(out))
    assert result.exit_code == 0, result.output
    assert "unified-64 (best unified)" in result.output
    assert len(json.loads(out.read_text())["report"]["variants"]) == 2


@pytest.mark.parametrize(
    ("text", "num_bytes"), [("45MB", 45_000_000), ("64 MiB", 2**26), ("1.5g", 1_500_000_000), ("10", 10), ("2kb", 2000)]
)
def test_sizes_are_read_as_typed(text: str, num_bytes: int) -> None:
    assert parse_bytes(text) == num_bytes


@pytest.mark.parametrize("text", ["", "0", "MB", "-1MB", "5 miles", "1ib"])
def test_bad_sizes_say_what_to_write(text: str) -> None:
    with pytest.raises(SettingsError, match="45MB"):
        parse_bytes(text)


@pytest.mark.parametrize("kind", list(TransportKind))
def test_transports_are_measured_and_their_bytes_compared(kind: TransportKind) -> None:
    """Red when a transfer is reported that did not arrive: the receiver is wiped between repeats."""
    layout = KVLayout(model_hash="t", dtype="float32", block_size=4, groups=(KVGroup.full(range(2), 1, 8),))
    cost = measure_transport(kind, 3 * layout.bytes_per_block - 1, 3, layout)
    assert (cost.num_blocks, cost.num_bytes) == (3, 3 * layout.bytes_per_block)
    assert (cost.handoff_s.count, cost.write_s.count) == (3, 3)
    assert cost.to_json()["gigabytes_per_s"] > 0


def test_what_is_between_boxes_is_measured_by_certificates_and_encrypted(tmp_path: Path) -> None:
    layout = KVLayout(model_hash="t", dtype="float32", block_size=4, groups=(KVGroup.full(range(2), 1, 8),))
    doors = trial_doors(tmp_path, encrypts=True, num_streams=2)
    cost = measure_transport(TransportKind.TCP, 3 * layout.bytes_per_block, 2, layout, doors=doors)
    assert cost.transport == "tcp encrypted x2"
    assert cost.gigabytes_per_s > 0
