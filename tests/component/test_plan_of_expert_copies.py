"""`relevo plan memory` with copies of experts: red when they are not counted, when the answer does not say what they
bring, or when what cannot be is not one sentence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from test_plan_memory_cli import asked

from published_configs import DEEPSEEK_V3, GPT_OSS_20B

GIB = 2**30


@pytest.fixture
def model(tmp_path: Path) -> str:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(GPT_OSS_20B))
    return str(path)


def planned(model: str, tmp_path: Path, *more: str) -> dict[str, Any]:
    path = tmp_path / "answer.json"
    result = asked("memory", model, "--devices", "8xH100", "--tp", "8", "--ep", "--json", str(path), *more)
    assert result.exit_code == 0, result.output
    answer: dict[str, Any] = json.loads(path.read_text()) | {"said": result.output}
    return answer


def test_copies_take_memory_on_every_rank(model: str, tmp_path: Path) -> None:
    without, copied = (planned(model, tmp_path, *more) for more in ((), ("--num-redundant-experts", "8")))
    one_expert = 3 * 2880 * 2880 * 2  # bytes, as bfloat16
    more = copied["layouts"][0]["weight_bytes"] - without["layouts"][0]["weight_bytes"]
    assert more == pytest.approx(24 * 8 * one_expert, rel=0.01)
    assert copied["layouts"][0]["num_tokens"] < without["layouts"][0]["num_tokens"]
    assert copied["layouts"][0]["layout"]["redundant_experts"] == 8
    assert without["layouts"][0]["expert_waits"] is None


def test_what_copies_bring_is_said(model: str, tmp_path: Path) -> None:
    loads = tmp_path / "loads.json"
    loads.write_text(json.dumps([[100, *[1] * 31]] * 24))
    found = [
        planned(model, tmp_path, "--expert-load", str(loads), "--num-redundant-experts", copies)
        for copies in ("0", "8")
    ]
    alone, copied = (each["layouts"][0]["expert_waits"] for each in found)
    assert alone["in_order"] == copied["in_order"] == pytest.approx(103 * 8 / 131)
    assert copied["placed"] < 1.1 < 6 < alone["placed"]
    assert "placed by load, with 8 copies, 1.0" in " ".join(found[1]["said"].split())


def test_loads_are_read_from_what_a_server_says(model: str, tmp_path: Path) -> None:
    """/metrics as it is saved: those of all workers together, layers as the model has them."""
    own, said = 'model_name="m",role="unified"', "relevo:expert_tokens_total"
    lines = [
        f'{said}{{{own},worker="{worker}",layer="{layer}",expert="{expert}"}} {100.0 if expert == 0 else 1.0}'
        for worker in "ab"
        for layer in range(24)
        for expert in range(32)
    ]
    saved, listed = tmp_path / "metrics.txt", tmp_path / "loads.json"
    saved.write_text("\n".join(("# HELP something else", "up 1", *reversed(lines), "")))
    listed.write_text(json.dumps([[200, *[2] * 31]] * 24))
    found = [planned(model, tmp_path, "--expert-load", str(path)) for path in (saved, listed)]
    waits = [each["layouts"][0]["expert_waits"] for each in found]
    assert waits[0] == waits[1] and waits[0]["in_order"] > 6


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ("--tp", "8", "--num-redundant-experts", "8"),
            "--num-redundant-experts are copies of whole experts; add --ep",
        ),
        (("--tp", "8", "--ep", "--num-redundant-experts", "4"), "choose --num-redundant-experts 8, or a multiple of 8"),
        (("--tp", "8", "--ep", "--num-redundant-experts", "232"), "choose at most 224"),
        (("--tp", "1", "--ep", "--num-redundant-experts", "8"), "and more than one of them; add --ep and tensor ranks"),
        (("--tp", "8", "--expert-load", "LOADS"), "--expert-load says how even ranks of whole experts are; add --ep"),
    ],
)
def test_what_cannot_be(model: str, tmp_path: Path, arguments: tuple[str, ...], words: str) -> None:
    loads = tmp_path / "loads.json"
    loads.write_text(json.dumps([[1] * 32] * 24))
    result = asked("memory", model, "--devices", "8xH100", *(str(loads) if a == "LOADS" else a for a in arguments))
    assert words in str(result.exception), result.output


@pytest.mark.parametrize(
    ("written", "words"),
    [
        ("{}", "must be a list of 24 layers with experts, and is no list"),
        ("[[1]]", "must be a list of 24 layers with experts, and is 1 of them"),
        (json.dumps([[1]] * 24), "layer 0 of the list must have 32 numbers"),
        (json.dumps([[-1] * 32] * 24), "has '-1', which is no count of tokens"),
        (json.dumps([["x"] * 32] * 24), "has 'x', which is no count of tokens"),
        (json.dumps([[True] * 32] * 24), "has 'True', which is no count of tokens"),
        ("nonsense", "cannot be read"),
        ('relevo:expert_tokens_total{layer="0",expert="0"} 1', "is 1 of them"),
        ('relevo:expert_tokens_total{layer="0"} 1', "cannot be read: 'expert'; save /metrics anew"),
        ('relevo:expert_tokens_total{layer="x",expert="0"} 1', "save /metrics anew"),
        ('relevo:expert_tokens_total{layer="0",expert="0"} NaN', "save /metrics anew"),
    ],
)
def test_files_that_are_none(model: str, tmp_path: Path, written: str, words: str) -> None:
    loads = tmp_path / "loads.json"
    loads.write_text(written)
    result = asked("memory", model, "--devices", "8xH100", "--tp", "8", "--ep", "--expert-load", str(loads))
    assert words in str(result.exception)


def test_uneven_numbers_of_experts_can_be_made_even(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(DEEPSEEK_V3 | {"n_routed_experts": 248}))
    refused = asked("memory", str(path), "--devices", "16xB200", "--tp", "16", "--ep")
    assert "248 experts cannot be divided among 16 groups of ranks" in str(refused.exception)
    made = asked("memory", str(path), "--devices", "16xB200", "--tp", "16", "--ep", "--num-redundant-experts", "8")
    assert made.exit_code == 0, made.output
