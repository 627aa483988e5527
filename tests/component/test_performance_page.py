"""`relevo bench page`: figures become a page, and what is no result is refused. Nothing is measured."""

from __future__ import annotations

import compileall
import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from relevo.bench.engine.run import Breakdown, DecodeRow, EngineReport, PrefillRow, Spread
from relevo.bench.engine.words import EngineFacts
from relevo.bench.gateway.run import DIRECT, GATEWAY, PathCost, ways_json
from relevo.bench.page.markdown import performance_page
from relevo.bench.page.quote import BEGIN, END, quoted
from relevo.bench.page.results import read_results
from relevo.bench.peers.report import PeersReport, TargetResult
from relevo.bench.peers.scenarios import COLD_START, Metric
from relevo.bench.stamp import stamped
from relevo.bench.start.run import StartCost, bytecode_notes
from relevo.cli.bench import app
from relevo.core.errors import SettingsError

ROOT = Path(__file__).parents[2]
CPU = {"cpu_model": "Some CPU", "cpu_features": ["avx2"], "num_usable_cpus": 2, "started_at": "2026-12-02T08:00:00"}
ENVIRONMENT = {**CPU, "command": ["relevo", "bench", "x"], "versions": {"relevo": "1", "numpy": "2"}}
PARTS = Breakdown(kernels_s=0.6, inputs_s=0.1, sampling_s=0.1, schedule_s=0.1, rest_s=0.1, overhead_fraction=0.4)


def engine() -> dict[str, Any]:
    facts = EngineFacts(
        model="m|m",
        backend="native",
        path="avx2",
        dtype="auto",
        quantization=None,
        kv_dtype="bfloat16",
        cores=(0, 1),
        max_model_len=8192,
        operand="int8",
        activation_dtype="int16",
        work=None,
    )
    prefill = PrefillRow(
        prompt_len=512,
        tokens_per_s=Spread(median=1234.5, least=1200.0, most=1300.0),
        breakdown=PARTS,
        num_steps=1,
        operations_per_s=280e9,
        limit_operations_per_s=1400e9,
    )
    decode = DecodeRow(
        batch_size=1,
        context=128,
        step_s=Spread(median=0.005, least=0.004, most=0.006),
        breakdown=PARTS,
        step_bytes=100_000_000,
        bytes_per_s=20e9,
        operations_per_s=None,
        limit_bytes_per_s=40e9,
        limit_operations_per_s=None,
    )
    return {"report": EngineReport(facts=facts, prefill=[prefill], decode=[decode], notes=["a note"]).to_json()}


def gateway() -> dict[str, Any]:
    worker, ours = PathCost(DIRECT), PathCost(GATEWAY)
    for cost, gap_s in ((worker, 0.05), (ours, 0.052)):
        cost.itl_s, cost.ttft_s, cost.num_tokens = [gap_s] * 4, [gap_s], 4
    ours.cpu_s = 4 * 55e-6
    return {"num_streams": 64, "step_s": 0.05, "ways": ways_json([worker, ours])}


def peers() -> dict[str, Any]:
    report = PeersReport(metrics=[COLD_START])
    report.results = [
        TargetResult(name="relevo", version="1", values={COLD_START: [2.0]}),
        TargetResult(name="x", values={COLD_START: [4.0]}, faults=["a run failed"]),
    ]
    return {"report": report.to_json()}


def start() -> dict[str, Any]:
    cost = StartCost("1p1d", [1.5, 2.5, 2.0], {"gateway": [1.0, 1.2, 1.1]})
    return {
        "model": "the default model",
        "rounds": 3,
        "starts": [cost.to_json()],
        "notes": ["some modules have no bytecode"],
    }


BODIES = {"engine": engine, "gateway": gateway, "peers": peers, "start": start}


def write(folder: Path, kind: str, *, interrupted: bool = False, **changed: object) -> Path:
    body = stamped(kind, BODIES[kind](), interrupted=interrupted)
    path = folder / f"{kind}.json"
    path.write_text(json.dumps({"environment": ENVIRONMENT, **body, **changed}))
    return path


def test_a_page_says_of_each_file_what_was_measured_where(tmp_path: Path) -> None:
    """Red when a figure that a command writes is not the one that the page shows, or what a page leaves out comes
    back in another order."""
    for kind in BODIES:
        write(tmp_path, kind)
    text = performance_page(read_results(tmp_path), "docs/results")
    assert text.count("## Some CPU, 2 cores: avx2\n") == 1
    assert "| 512 tokens | 1,234 (1,200 to 1,300) | 280.0 | 1,400.0 | 20 % |" in text
    assert "| 1 at 128 | 5.00 (4.00 to 6.00) | 200 | 2.50 | 50 % | - |" in text
    assert "| gateway | 55.0 | 2.0 / 2.0 | 2.0 / 2.0 | 4 | 0 |" in text
    assert "| cold start to first token, s | 2.00 | 4.00 | x | 0.50 |" in text
    assert "### Beside x, over HTTP" in text
    assert "relevo 1; x (version not said)." in text
    assert "x: a run failed." in text
    assert "| 1p1d | 2.00 (1.50 to 2.50) | 1.10 |" in text
    assert "    relevo bench x" in text
    assert text == performance_page(list(reversed(read_results(tmp_path))), "docs/results")


def test_of_several_comparisons_the_worst_ratio_is_quoted(tmp_path: Path) -> None:
    """Red when a peer that does well disappears behind one that does badly, or every latency is quoted."""
    speed, time_ = Metric("prefill of 512: tokens/s", lower_is_better=False), Metric("8 streams: ms/token", True)
    for name, tokens_per_s, ms in (("slow", 10.0, 8.0), ("fast", 200.0, 2.0), ("middle", 50.0, 4.0)):
        report = PeersReport(metrics=[COLD_START, speed, time_])
        report.results = [
            TargetResult(name="relevo", values={COLD_START: [1.0], speed: [100.0], time_: [1.0]}),
            TargetResult(name=name, values={COLD_START: [1.0], speed: [tokens_per_s], time_: [ms]}),
        ]
        write(tmp_path, "peers", report=report.to_json()).rename(tmp_path / f"{name}.json")
    text = quoted(f"{BEGIN}\n{END}", read_results(tmp_path), "README.md")
    assert "| prefill of 512: tokens/s: relevo / fast | 0.50 | Some CPU, 2 cores: avx2 |" in text
    assert "| 8 streams: ms/token: relevo / fast | 0.50 |" in text
    assert text.count("Some CPU") == 2


def test_another_kind_of_cpu_has_a_section_of_its_own(tmp_path: Path) -> None:
    write(tmp_path, "gateway")
    write(tmp_path, "start", environment=ENVIRONMENT | {"cpu_features": ["avx2", "avx512f"]})
    text = performance_page(read_results(tmp_path), "r")
    assert [line for line in text.splitlines() if line.startswith("## ")] == [
        "## Some CPU, 2 cores: avx2",
        "## Some CPU, 2 cores: avx2, avx512f",
    ]


def test_modules_without_bytecode_are_told(tmp_path: Path) -> None:
    """Red when a start that compiles every module again passes for what a start takes."""
    (tmp_path / "a.py").write_text("A = 1")
    (tmp_path / "b.py").write_text("B = 1")
    assert bytecode_notes(tmp_path)[0].startswith("2 of 2 modules have no bytecode")
    compileall.compile_file(tmp_path / "a.py", quiet=1)
    assert bytecode_notes(tmp_path)[0].startswith("1 of 2 modules have no bytecode")
    compileall.compile_dir(tmp_path, quiet=1)
    assert bytecode_notes(tmp_path) == []


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "is no result that this release knows"),
        ("[]", "is no result that this release knows"),
        ('{"environment": {}, "report": {}}', "is no result that this release knows"),
        ('{"kind": "quality", "format": 1}', "'quality'"),
    ],
)
def test_what_is_no_result_is_refused(tmp_path: Path, text: str, reason: str) -> None:
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(SettingsError, match=reason) as refused:
        read_results(tmp_path)
    assert "x.json" in refused.value.message
    assert "--json" in refused.value.message


def test_results_of_other_releases_and_of_broken_runs_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path, "gateway", format=0)
    with pytest.raises(SettingsError, match=r"\$.format"):
        read_results(tmp_path)
    write(tmp_path, "gateway", interrupted=True)
    with pytest.raises(SettingsError, match="interrupted"):
        read_results(tmp_path)
    path.unlink()
    with pytest.raises(SettingsError, match="holds no"):
        read_results(tmp_path)


def test_a_refusal_writes_nothing(tmp_path: Path) -> None:
    """And is one sentence, with the status of a mistake."""
    write(tmp_path, "gateway")
    page, other = tmp_path / "page.md", tmp_path / "other.md"
    other.write_text("no place for figures here\n")
    run = CliRunner().invoke(app, ["page", str(tmp_path), "--out", str(page), "--quote", str(other)])
    assert run.exit_code == 2
    assert not page.exists()
    assert other.read_text() == "no place for figures here\n"


def test_a_quote_stays_between_its_marks(tmp_path: Path) -> None:
    for kind in BODIES:
        write(tmp_path, kind)
    results = read_results(tmp_path)
    text = quoted(f"before\n{BEGIN}\nstale\n{END}\nafter\n", results, "README.md")
    assert text.startswith(f"before\n{BEGIN}\n| measured |")
    assert text.endswith(f"\n{END}\nafter\n")
    assert "stale" not in text
    assert "| command to first token, `1p1d` | 2.00 s | Some CPU, 2 cores: avx2 |" in text
    assert quoted(text, results, "README.md") == text


def test_the_page_in_docs_is_what_the_command_makes_of_the_results_there() -> None:
    """Red when a figure was changed by hand, or a result without the page: run
    `relevo bench page docs/results --out docs/performance.md --quote README.md`."""
    results = read_results(ROOT / "docs" / "results")
    page, readme = ROOT / "docs" / "performance.md", (ROOT / "README.md").read_text(encoding="utf-8")
    assert page.read_text(encoding="utf-8") == performance_page(results, "docs/results")
    assert quoted(readme, results, "README.md") == readme
