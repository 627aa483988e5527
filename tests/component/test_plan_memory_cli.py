"""`relevo plan memory`, through the command line. Red when a figure is missing, or a mistake is not one sentence."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from relevo.cli.main import make_app
from relevo.core.errors import RelevoError

CONFIG = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
}


@pytest.fixture
def model(tmp_path: Path) -> str:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(CONFIG))
    return str(path)


def asked(*arguments: str) -> Result:
    return CliRunner().invoke(make_app("plan"), ["plan", *arguments], env={"COLUMNS": "200"})


def test_the_best_layout_is_found_and_told_whole(model: str, tmp_path: Path) -> None:
    path = tmp_path / "answer.json"
    result = asked("memory", model, "--devices", "4xL40S", "--json", str(path))
    assert result.exit_code == 0, result.output
    told = json.loads(path.read_text())
    assert told["fits"] and len(told["layouts"]) == 3
    best = told["layouts"][0]
    assert best["num_tokens"] == max(each["num_tokens"] for each in told["layouts"])
    assert sum(stage["num_layers"] for stage in best["stages"]) == 32
    for stage in best["stages"]:
        parts = ("weight_bytes", "activation_bytes", "runtime_bytes", "bounded_bytes", "free_bytes")
        assert sum(stage[part] for part in parts) == pytest.approx(46_068 * 2**20)
    assert best["contexts"][-1]["context_tokens"] == 131072


def test_what_does_not_fit_has_an_exit_status_of_its_own(model: str) -> None:
    result = asked("memory", model, "--devices", "1xRTX4090", "--memory-gib", "8")
    assert result.exit_code == 1 and "it does not fit" in result.output and "give more devices" in result.output


def test_a_smaller_cache_has_room_for_more(model: str, tmp_path: Path) -> None:
    sizes = []
    for dtype in ("bfloat16", "float8_e4m3"):
        path = tmp_path / dtype
        assert asked("memory", model, "--devices", "1xH100", "--kv-dtype", dtype, "--json", str(path)).exit_code == 0
        sizes.append(json.loads(path.read_text())["layouts"][0]["num_tokens"])
    assert sizes[1] == pytest.approx(2 * sizes[0], abs=2)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--devices", "8xH100", "--tp", "3"), "do not use 8 devices"),
        (("--devices", "8xH100", "--tp", "4", "--pp", "4"), "their product must be 8"),
        (("--devices", "8xH100,8xA100"), "several kinds"),
        (("--devices", "8xH100", "--ep"), "--ep divides experts"),
        (("--devices", "8xH100", "--dcp", "3"), "--dcp 3"),
        (("--devices", "8xH100", "--kv-dtype", "int3"), "--kv-dtype int3 is not known"),
        (("--devices", "8 GPUs"), "is not understood"),
        (("--devices", "2xcpu"), "there is one machine here"),
    ],
)
def test_mistakes_are_one_sentence(model: str, arguments: tuple[str, ...], words: str) -> None:
    error = asked("memory", model, *arguments).exception
    assert isinstance(error, RelevoError) and words in error.message


def test_this_machine_can_be_planned_for(model: str, tmp_path: Path) -> None:
    """Red when the runtime of an accelerator is counted on a CPU, or its weights where the config says float32."""
    path = tmp_path / "answer.json"
    result = asked("memory", model, "--devices", "cpu", "--memory-gib", "48", "--json", str(path))
    assert result.exit_code == 0, result.output
    told = json.loads(path.read_text())
    (stage,) = told["layouts"][0]["stages"]
    assert told["devices"] == {"name": "cpu", "num_devices": 1} and told["asked"]["limits"]["max_step_tokens"] == 512
    assert stage["runtime_bytes"] < 2**28 and stage["weight_bytes"] == pytest.approx(4 * 8.03e9, rel=0.01)


def test_integers_in_the_cache_have_their_scales(model: str, tmp_path: Path) -> None:
    path = tmp_path / "answer.json"
    asked("memory", model, "--devices", "1xH100", "--kv-dtype", "int8", "--json", str(path))
    (stage,) = json.loads(path.read_text())["layouts"][0]["stages"]
    assert stage["groups"][0]["token_bytes"] == 32 * 2 * 8 * (128 + 4)


def test_plan_without_a_command_is_the_plan_of_capacity() -> None:
    """The command was there before it had a name."""
    result = asked("--devices", "8xH100")
    assert result.exit_code == 2 and "--model" in result.output
