"""The quality instrument: windows and sums as llama-perplexity's, and zero distance of a model to itself."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType
from tiny_decoders import VOCAB, hf_logits, hf_model, prompt, write_gguf
from typer.testing import CliRunner

from relevo.bench.quality.run import (
    QualityReport,
    Score,
    compare_forwards,
    cut_windows,
    log_probabilities,
    scored_positions,
    top_margins,
)
from relevo.build.bench_quality import CORPUS, make_forward, tokens_of
from relevo.cli.bench import app
from relevo.core.errors import SettingsError
from relevo.settings import Settings
from relevo.telemetry.progress import SILENT


def logits_of(*rows: list[float]) -> np.ndarray:
    """Whose softmax is the given probabilities; shifted, which must not matter."""
    return np.log(np.array(rows)).astype(np.float32) + np.float32(3.0)


def test_windows_are_whole_and_only_the_second_half_is_scored() -> None:
    assert cut_windows(list(range(10)), 4, None) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert cut_windows(list(range(9)), 4, 99) == [[99, 1, 2, 3], [99, 5, 6, 7]]
    assert list(scored_positions(8)) == [4, 5, 6]  # the last token has nothing after it in its window
    assert len(scored_positions(512)) == 255
    with pytest.raises(SettingsError, match="less than one window"):
        cut_windows([1, 2, 3], 4, None)
    with pytest.raises(SettingsError, match="nothing to score"):
        cut_windows([1, 2, 3], 3, None)


def test_divergence_perplexity_and_near_ties_by_hand() -> None:
    reference = logits_of([0.5, 0.25, 0.25], [0.4, 0.39, 0.21], [0.1, 0.8, 0.1])
    engine = logits_of([0.25, 0.5, 0.25], [0.39, 0.4, 0.21], [0.1, 0.8, 0.1])
    score = Score(name="x")
    score.add(7, [4, 5, 6], reference, engine, [0, 0, 1], near_tie=0.1)
    first = 0.5 * math.log(2) + 0.25 * math.log(0.5)
    second = 0.4 * math.log(0.4 / 0.39) + 0.39 * math.log(0.39 / 0.4)
    assert score.mean_kl == pytest.approx((first + second) / 3, abs=1e-6)
    assert score.largest_kl == pytest.approx(first, abs=1e-6)
    assert score.perplexity == pytest.approx((0.25 * 0.39 * 0.8) ** (-1 / 3), rel=1e-5)
    assert score.reference_perplexity == pytest.approx((0.5 * 0.4 * 0.8) ** (-1 / 3), rel=1e-5)
    assert (score.num_disagreements, score.num_near_ties) == (2, 1)
    assert [(one.window, one.position) for one in score.shown] == [(7, 4), (7, 5)]  # widest margin first
    assert score.agreement == pytest.approx(1 / 3)


def test_probabilities_and_margins_of_extreme_logits() -> None:
    rows = np.array([[1e4, 1e4 - 1.0, -1e4]], dtype=np.float32)
    assert np.exp(log_probabilities(rows)).sum() == pytest.approx(1.0)
    assert top_margins(rows) == pytest.approx([1.0])


def test_each_window_goes_through_the_reference_and_every_engine() -> None:
    rng = np.random.default_rng(0)
    table = rng.normal(size=(50, 50)).astype(np.float32)

    def bigram(window: list[int], positions: range) -> np.ndarray:
        return table[[window[position] for position in positions]]

    report = QualityReport(reference="itself", context=8, near_tie=0.05)
    windows = cut_windows(rng.integers(0, 50, 40).tolist(), 8, None)
    compare_forwards(windows, bigram, [("same", bigram), ("half", lambda w, p: bigram(w, p) / 2)], report, SILENT)
    same, half = report.scores
    assert same.num_tokens == half.num_tokens == 5 * 3
    assert (same.mean_kl, same.num_disagreements) == (0.0, 0)
    assert same.perplexity == same.reference_perplexity
    assert half.mean_kl > 0.01 and half.num_disagreements == 0
    assert json.loads(json.dumps(report.to_json()))["scores"][1]["mean_kl"] == half.mean_kl


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tiny") / "tiny.gguf"
    write_gguf(hf_model("llama", tie_word_embeddings=True), path, GGMLQuantizationType.F32)
    return path


@pytest.mark.parametrize("backend", ["torch", "native"])
def test_forwards_are_the_models_own_in_one_chunk_or_many(tiny: Path, backend: str) -> None:
    """Against `transformers`; red when a chunk's positions are counted from the wrong end."""
    if backend == "native":
        pytest.importorskip("relevo_native")
    expected = hf_logits(hf_model("llama", tie_word_embeddings=True), prompt(40))
    for chunk_size in (64, 7):
        settings = Settings(
            model=str(tiny),
            backend=backend,
            dtype="float32",
            kv_cache_dtype="float32",
            max_num_batched_tokens=chunk_size,
            max_num_seqs=4,
        )
        _, forward = make_forward(settings, 40)
        for positions in (range(20, 39), range(0, 3)):
            assert np.abs(forward(prompt(40), positions) - expected[list(positions)]).max() < 1e-4
    assert forward(prompt(40), range(39, 40)).shape == (1, VOCAB)


def bench_quality(*arguments: str) -> object:
    return CliRunner().invoke(app, ["quality", *arguments], env={"COLUMNS": "200"})


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--variant", "speed=high"), "speed=high"),
        (("--text", "no-such-text"), "cannot read the text"),
        (("--context", "3"), "nothing to score"),
        (("--context", "10000000"), "less than one window"),
        (("--reference", "abacus"), "--backend abacus"),
    ],
)
def test_mistakes_are_one_sentence(arguments: tuple[str, ...], words: str) -> None:
    result = bench_quality(*arguments)
    assert result.exit_code == 2
    assert "Traceback" not in result.output
    assert words in result.output


@pytest.mark.model
def test_the_packaged_text_scores_five_thousand_tokens() -> None:
    token_ids, _ = tokens_of(Settings(), CORPUS)
    windows = cut_windows(token_ids, 512, None)
    assert len(windows) * len(scored_positions(512)) >= 5000
    assert len(set(token_ids)) > 1500  # varied


@pytest.mark.model
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_command_compares_variants(tmp_path: Path) -> None:
    """Computed twice in float32: apart by rounding alone; with inputs of 16 bits hardly more, of 8 bits clearly."""
    pytest.importorskip("relevo_native")
    out = tmp_path / "out.json"
    small = ["--context", "24", "--max-windows", "2", "--json", str(out)]
    exact = "backend=torch,dtype=float32,kv=float32"
    result = bench_quality(
        *small, "--variant", exact, "--variant", "backend=native", "--variant", "backend=native,activation=int8"
    )
    assert result.exit_code == 0, result.output
    same, native, coarse = json.loads(out.read_text())["report"]["scores"]
    assert same["num_tokens"] == native["num_tokens"] == 2 * 11
    assert (same["num_disagreements"], abs(same["mean_kl"])) == (0, pytest.approx(0.0, abs=1e-12))
    assert 0 < native["mean_kl"] < 1e-4
    assert native["mean_kl"] < coarse["mean_kl"] < 0.05
