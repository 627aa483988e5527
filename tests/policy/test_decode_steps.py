"""Many decode steps are answered at once as each of them alone, to the last bit: a simulated jump rests on it."""

from __future__ import annotations

from random import Random

import pytest

from relevo.policy.perf.devices import device
from relevo.policy.perf.model_config import model_shape
from relevo.policy.perf.parallelism import Parallelism
from relevo.policy.perf.roofline import RooflineModel
from relevo.policy.perf.step_time import decode_shape
from relevo.policy.perf.step_work import DeviceWork

LLAMA = {
    "model_type": "llama",
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "vocab_size": 128256,
}
MISTRAL = {**LLAMA, "model_type": "mistral", "sliding_window": 4096}


@pytest.mark.parametrize("config", [LLAMA, MISTRAL], ids=lambda config: config["model_type"])
def test_steps_of_a_run_equal_single_steps(config: dict[str, object]) -> None:
    model, rng = RooflineModel(DeviceWork(model_shape("m", config), device("h100"), Parallelism(tensor=2))), Random(1)
    for _ in range(200):
        num_rows = rng.randint(1, 64)
        num_kv = rng.randint(num_rows, num_rows * 8000)
        single = [model.step_s(decode_shape(num_rows, num_kv + number * num_rows)) for number in range(9)]
        assert model.decode_steps_s(num_rows, num_kv, 9) == single
