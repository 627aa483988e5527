"""What people write for the planner, and what it writes for them: units, typos, commands."""

from __future__ import annotations

import random
import shlex
from itertools import islice

import pytest
from engine_options import parsed
from planned_machines import demand, expert_shape, question

from relevo.core.errors import SettingsError
from relevo.core.role import DECODE, PREFILL, UNIFIED, parse_role
from relevo.policy.perf.parallelism import Parallelism
from relevo.policy.scaling.candidates import Candidate, Stage
from relevo.policy.scaling.command_lines import Serving, relevo_commands, sglang_commands, vllm_commands
from relevo.policy.scaling.demand import Demand, dispersion, strata
from relevo.policy.scaling.inventory import parse_inventory
from relevo.policy.scaling.queueing import response_quantile, wait_for
from relevo.policy.scaling.search import Question, worker_kinds


def test_devices_are_read_with_their_prices() -> None:
    first, second = parse_inventory("8xH100@2.9/h, 16 x A100-80GB @ 1.2/h")
    assert (first.device.name, first.num_devices, first.price_per_h) == ("h100", 8, 2.9)
    assert (second.device.name, second.num_devices, second.price_per_h) == ("a100", 16, 1.2)
    assert parse_inventory("4xMI300X")[0].price_per_h is None


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("8xH10", "did you mean h100"),
        ("8xTPU", "known are a100"),
        ("H100", "write 8xH100"),
        ("0xH100", "give 1 to"),
        ("99999xH100", "give 1 to"),
        ("8xH100@2.9", "write it as @2.9/h"),
        ("8xH100@2.9/min", "not per hour"),
        ("8xH100@0/h", "above 0"),
        ("8xH100@1.2.3/h", "above 0"),
        ("8xH100@3/h,8xA100", "a100 has no price"),
        ("8xH100,4xh100", "twice"),
        ("", "write 8xH100"),
    ],
)
def test_a_mistake_in_devices_is_one_sentence_with_the_way_out(text: str, word: str) -> None:
    """Red when a typo is read as something else, or a price without a unit is taken."""
    with pytest.raises(SettingsError, match=word):
        parse_inventory(text)


def test_samples_stand_for_all_lengths() -> None:
    """Red when long requests, which are few and heavy, are missed or counted twice."""
    rng = random.Random(1)
    sizes = [round(rng.lognormvariate(8, 1.2)) for _ in range(12_000)]
    chosen = [sizes[position] for position in strata(sizes, 200)]
    assert sum(chosen) / len(chosen) == pytest.approx(sum(sizes) / len(sizes), rel=0.03)
    assert strata([5.0, 1.0], 200) == [1, 0]


def test_bursts_are_told_from_even_arrivals() -> None:
    rng = random.Random(2)
    even = list(islice(_poisson(rng, 5.0), 5000))
    bursts = [at - at % 60 for at in even]
    assert dispersion(even, 10.0) == pytest.approx(1.0, abs=0.3)
    assert dispersion(bursts, 10.0) > 20
    assert dispersion([], 10.0) == dispersion([1.0, 1.0], 10.0) == 1.0


def _poisson(rng: random.Random, rate: float):  # type: ignore[no-untyped-def]
    at_s = 0.0
    while True:
        at_s += rng.expovariate(rate)
        yield at_s


def test_a_queue_waits_as_queues_do() -> None:
    """Erlang: one server of fixed service at load 0.5 makes half of the requests wait. More servers wait less."""
    one, four = wait_for(0.5, [1.0], 1, 1.0), wait_for(2.0, [1.0], 4, 1.0)
    assert one.busy_probability == pytest.approx(0.5) and four.busy_probability < 0.2
    assert one.tail_s == pytest.approx(1.0)  # of those that wait: s / (1 - load) / 2
    assert response_quantile(one, [1.0], 0.9) == pytest.approx(1.0 + 1.609, rel=0.01)  # ln(0.5 / 0.1)
    assert wait_for(1.0, [1.0], 1, 1.0).is_saturated


def _candidate(asked: Question, spread: Parallelism, *counts: int) -> Candidate:
    kinds, _ = worker_kinds(asked)
    roles = (PREFILL, DECODE) if len(counts) > 1 else (UNIFIED,)
    return Candidate(
        tuple(
            Stage(role, next(kind for kind in kinds[role] if kind.parallelism == spread), count)
            for role, count in zip(roles, counts, strict=True)
        )
    )


def _serving(**rows: int) -> Serving:
    return Serving(
        model="my org/model",
        max_model_len=32_768,
        block_size=16,
        utilization=0.9,
        rows={parse_role(role): number for role, number in rows.items()},
    )


def _demand() -> Demand:
    return demand()


def test_commands_say_what_the_plan_says() -> None:
    """Red when a flag is lost: the engines would start another plan, or none at all."""
    wide = _candidate(
        question(_demand(), "64xH200", shape=expert_shape()), Parallelism(attention_data=8, expert=8), 2, 3
    )
    serving = _serving(prefill=64, decode=512)
    prefill, decode, router = (shlex.split(line.command) for line in vllm_commands(wide, serving))
    assert prefill[:3] == ["vllm", "serve", "my org/model"]
    assert "--enable-expert-parallel" in decode and _after(decode, "--data-parallel-size") == "8"
    assert _after(decode, "--max-num-seqs") == "64", "vLLM counts them on each rank"
    assert "kv_both" in _after(prefill, "--kv-transfer-config")
    assert router.count("--prefill") == 2 and router.count("--decode") == 3
    prefill, decode, router = (shlex.split(line.command) for line in sglang_commands(wide, serving))
    assert _after(prefill, "--disaggregation-mode") == "prefill" and _after(decode, "--ep-size") == "8"
    assert _after(decode, "--tp-size") == "8" and _after(decode, "--dp-size") == "8"
    assert _after(decode, "--max-running-requests") == "512" and "--pd-disaggregation" in router


def test_commands_without_a_split_name_no_transfer() -> None:
    plain = _candidate(question(_demand()), Parallelism(), 1)
    for lines in (vllm_commands(plain, _serving(unified=16)), sglang_commands(plain, _serving(unified=16))):
        assert len(lines) == 1 and "disaggregation" not in lines[0].command and "kv-transfer" not in lines[0].command


def test_relevos_command_starts_the_split_and_says_what_it_cannot() -> None:
    (line,) = relevo_commands(_candidate(question(_demand()), Parallelism(), 2, 1), _serving(prefill=8, decode=40))
    assert "--topology 2p1d" in line.command and "--max-num-seqs 40" in line.command and not line.note
    (line,) = relevo_commands(
        _candidate(question(_demand()), Parallelism(tensor=4), 2, 1), _serving(prefill=8, decode=40)
    )
    assert "has 4 devices" in line.note


def _after(words: list[str], flag: str) -> str:
    return words[words.index(flag) + 1]


@pytest.mark.parametrize("counts", [(1,), (3,), (1, 1), (2, 3)])
@pytest.mark.parametrize(
    "spread",
    [Parallelism(), Parallelism(tensor=4), Parallelism(tensor=2, pipeline=2), Parallelism(attention_data=8, expert=8)],
)
def test_engines_take_every_command(spread: Parallelism, counts: tuple[int, ...]) -> None:
    """Against options that were recorded of the engines. Red when a flag is spelt as no engine has it, or its value is
    none that it takes."""
    shape = expert_shape() if spread.expert > 1 else question(_demand()).shape
    candidate = _candidate(question(_demand(), "64xH200", shape=shape), spread, *counts)
    roles = ("prefill", "decode") if len(counts) > 1 else ("unified",)
    serving = _serving(**dict.fromkeys(roles, 48))
    lines = [*vllm_commands(candidate, serving), *sglang_commands(candidate, serving)]
    for line in lines:
        assert parsed(shlex.split(line.command))
    with pytest.raises(SystemExit):
        parsed(["vllm", "serve", "m", "--tensor-paralel-size", "2"])
    assert len(lines) == 2 * (len(counts) + (sum(counts) > 1))


def test_relevos_command_has_the_plans_pool_and_a_token_for_every_row() -> None:
    """Red when the server that is started sizes its own cache, or refuses what it is told."""
    candidate = _candidate(question(_demand()), Parallelism(), 1, 1)
    (line,) = relevo_commands(candidate, _serving(prefill=8, decode=100_000))
    words = shlex.split(line.command)
    pool = min(stage.kind.memory.num_pool_tokens for stage in candidate.stages)
    assert int(_after(words, "--num-kv-blocks")) * 16 == pytest.approx(pool, abs=16)
    assert _after(words, "--max-num-batched-tokens") == _after(words, "--max-num-seqs") == "100000"
