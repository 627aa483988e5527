"""The engine's instrument on tiny real models: bytes and products counted from the files, clocks of both backends."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from gguf import GGMLQuantizationType
from tiny_decoders import VOCAB, hf_model, write_gguf
from typer.testing import CliRunner

from random_experts import ExpertsShape, write_random_experts
from relevo.build.backend import instruction_path
from relevo.cli.bench import app

LAYER_PRODUCTS = 64 * (64 + 32 + 32) + 64 * 64 + 3 * 64 * 96  # q, k, v; output; gate, up, down
PRODUCTS = 2 * LAYER_PRODUCTS


def engine_report(path: Path, out: Path, *flags: str) -> dict:
    sizes = ["--prompt-lens", "12", "--batch-sizes", "1,2", "--contexts", "9", "--repeats", "1", "--num-steps", "2"]
    result = CliRunner().invoke(app, ["engine", str(path), *sizes, *flags, "--json", str(out)])
    assert result.exit_code == 0, result.output
    return json.loads(out.read_text())["report"]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tiny") / "tiny.gguf"
    write_gguf(hf_model("llama", tie_word_embeddings=True), path, GGMLQuantizationType.Q4_1)
    return path


@pytest.mark.parametrize(
    ("flags", "bytes_per_32", "operand"),
    [
        (("--backend", "torch", "--dtype", "float32"), 128, "f32"),
        (("--backend", "native"), 20, "int4"),
        (("--backend", "native", "--dtype", "bfloat16"), 64, "widened"),
        (("--backend", "native", "--dtype", "bfloat16", "--activation-dtype", "bfloat16"), 64, "bf16"),
    ],
)
def test_bytes_products_and_clocks(
    tiny: Path, tmp_path: Path, flags: tuple[str, ...], bytes_per_32: int, operand: str
) -> None:
    if "native" in flags:
        pytest.importorskip("relevo_native")
    if operand == "widened":  # to float32 in registers; AMX alone multiplies pairs of bfloat16 by itself
        operand = "bf16" if instruction_path() == "amx" else "f32"
    report = engine_report(tiny, tmp_path / "out.json", *flags)
    facts, work = report["facts"], report["facts"]["work"]
    head = VOCAB * 64  # tied: the embedding is the output layer, read as a whole
    assert work["products_per_token"] == PRODUCTS
    assert work["head_products"] == head
    assert work["weight_bytes"] == (PRODUCTS + head) // 32 * bytes_per_32
    assert work["attention_products"] == 2 * 2 * 4 * 16
    assert facts["operand"] == operand
    for row in [*report["prefill"], *report["decode"]]:
        parts = row["breakdown"]
        assert parts["kernels_s"] > 0 and parts["inputs_s"] > 0 and parts["sampling_s"] > 0
        assert 0 < parts["overhead_fraction"] < 1
        assert row["operations_per_s"] > 0


def test_of_experts_the_bytes_that_a_token_passes_count(tmp_path: Path) -> None:
    """Red if a bound of decoding counts experts that no token of the step asked for, or leaves out the router."""
    pytest.importorskip("relevo_native")
    shape = ExpertsShape(
        hidden_size=64,
        inner_size=96,
        num_layers=2,
        num_heads=4,
        num_kv_heads=2,
        head_size=16,
        num_experts=8,
        num_active=2,
        vocab_size=VOCAB,
        max_position=128,
    )
    path = write_random_experts(tmp_path / "experts.gguf", shape)
    report = engine_report(path, tmp_path / "out.json")
    work, head, router = report["facts"]["work"], VOCAB * 64, 8 * 64
    in_4_bits = shape.attention_products + 2 * shape.expert_products
    assert work["products_per_token"] == 2 * (in_4_bits + router)
    assert work["weight_bytes"] == (2 * in_4_bits + head) // 32 * 18 + 2 * 4 * router
    assert [row["batch_size"] for row in report["decode"]] == [1, 2]
    assert all(row["bound_fraction"] > 0 for row in report["decode"])
