"""A real vLLM on two machines of one box behind Relevo: `make cluster-vllm`.

Red when split answers differ from vLLM's own, when the death of an engine or a gateway that stood still costs an answer
or makes a wrong one, when the ledger and the answers disagree, or when a client's fields reach an engine.

Answers are compared one at a time where they must be equal: what else is in the batch changes the last bits of vLLM's
logits, and with them a near tie. A vLLM alone shows the same beside it.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest
from machines import Network, why_not
from vllm_machines import BLOCK_SIZE, LEASE_S, VLLM, Pair, descendants, until, vllm_pair

from relevo.telemetry.metric_table import ENGINE_HANDOFFS

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(5400),
    pytest.mark.skipif(why_not() is not None, reason=why_not() or ""),
    pytest.mark.skipif(not (VLLM / ".installed").exists(), reason="make cluster-vllm installs vLLM first"),
]
NUM_PROMPTS = int(os.environ.get("NUM_PROMPTS", "200"))
NEAR_TIE = 0.01  # nats


def say(text: str) -> None:
    """A figure, with `-s`."""
    sys.stdout.write(text + "\n")


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    with Network(2) as network, vllm_pair(network, tmp_path_factory.mktemp("vllm")) as running:
        yield running


def prompts(seed: int, count: int, longest: int = 400) -> list[list[int]]:
    rng = Random(seed)
    return [[rng.randrange(256) for _ in range(rng.randrange(longest // 20, longest))] for _ in range(count)]


def tokens_of(answers: Sequence[tuple[int, Any]]) -> list[list[int]]:
    assert [status for status, _ in answers] == [200] * len(answers), [told for s, told in answers if s != 200]
    return [told["choices"][0]["token_ids"] for _, told in answers]


def alone(pair: Pair, asked: list[list[int]], max_tokens: int = 16, width: int = 1) -> list[list[int]]:
    return tokens_of(pair.ask_all([pair.alone(pair.decode, each, max_tokens) for each in asked], width))


def hits(usage: dict[str, Any]) -> int:
    return (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0


def outcomes(pair: Pair) -> dict[str, float]:
    return {outcome: pair.handoffs(outcome) for outcome in ENGINE_HANDOFFS}


def overwrite(pair: Pair) -> None:
    """All that the prefill engine has freed is another prompt's afterwards."""
    tokens_of(pair.ask_all([pair.alone(pair.prefill, each, 1) for each in prompts(4, 60, 1000)]))


def test_answers_equal_vllm_alone_and_are_counted(pair: Pair) -> None:
    assert not differing_and_counted(pair, prompts(1, NUM_PROMPTS))


def differing_and_counted(pair: Pair, asked: list[list[int]], least_gap: float = 0.0) -> list[int]:
    """Prompts whose split answer is not vLLM's own, by so many nats at least; all were handed over and counted."""
    expected = alone(pair, asked)
    before, ledger = outcomes(pair), pair.usage()
    told = pair.ask_all([pair.behind(each) for each in asked], width=1)
    answers = tokens_of(told)
    differing = [n for n, tokens in enumerate(answers) if tokens != expected[n]]
    gaps = [first_gap(pair, asked[n], expected[n], answers[n]) for n in differing]
    say(f"\n{len(asked) - len(differing)} of {len(asked)} answers equal vLLM alone; different: {differing}, by {gaps}")
    came = {
        outcome: int(count - before[outcome]) for outcome, count in outcomes(pair).items() if count > before[outcome]
    }
    say(f"handoffs: {came}")
    assert sum(came.values()) >= len(asked), "a prompt that was never to be handed over"
    assert came.keys() <= {"completed", "late"}
    assert came["completed"] >= len(asked) * 0.95  # the rest: an engine that had to wait for a core for seconds

    last = asked[-20:]
    again = pair.ask_all([pair.behind(each) for each in last], width=1)
    whole_blocks = [(len(prompt) - 1) // BLOCK_SIZE * BLOCK_SIZE for prompt in last]
    assert [hits(answer["usage"]) for _, answer in again] == whole_blocks

    everything = [answer["usage"] for _, answer in (*told, *again)]
    expected_sums = {
        "requests": len(everything),
        "prompt_tokens": sum(map(len, (*asked, *last))),
        "completion_tokens": 16 * len(everything),
        "cached_tokens": sum(map(hits, everything)),
    }
    counted = {name: pair.usage()[name] - ledger.get(name, 0) for name in expected_sums}
    say(f"ledger: {counted}")
    assert counted == expected_sums
    return [n for n, gap in zip(differing, gaps, strict=True) if gap >= least_gap]


def test_what_a_batch_changes_it_changes_in_vllm_alone_too(pair: Pair) -> None:
    """Sixteen at a time, behind Relevo and in a vLLM alone: where one differs from its answer alone, the first other
    token was a near tie."""
    asked = prompts(7, 64)
    expected = alone(pair, asked)
    twin = alone(pair, asked, width=16)
    behind = tokens_of(pair.ask_all([pair.behind(each) for each in asked], width=16))
    for name, said in (("vLLM alone", twin), ("behind Relevo", behind)):
        differing = [n for n in range(len(asked)) if said[n] != expected[n]]
        say(f"\n{name}, 16 at a time: {len(differing)} of {len(asked)} differ from one at a time")
        for n in differing:
            assert first_gap(pair, asked[n], expected[n], said[n]) < NEAR_TIE


def first_gap(pair: Pair, prompt: list[int], one: list[int], other: list[int]) -> float:
    """Between the two tokens of which the first difference chose."""
    at = next(n for n, (a, b) in enumerate(zip(one, other, strict=True)) if a != b)
    ask = pair.alone(pair.decode, [*prompt, *one[:at]], 1, logprobs=5)
    ((_, told),) = pair.ask_all([ask])
    (entry,) = told["choices"][0]["logprobs"]["content"]
    found = {each["token_id"]: each["logprob"] for each in (entry, *entry["top_logprobs"])}
    return abs(float(found[one[at]]) - float(found[other[at]]))


def test_nothing_of_a_client_reaches_an_engine(pair: Pair) -> None:
    (prompt,) = prompts(2, 1)
    poison = {"kv_transfer_params": {"do_remote_prefill": True}}
    expected = alone(pair, [prompt])
    fields = (
        *(poison, {"extra_body": poison}, {"sampling_params": poison}, {"extra_args": poison}),
        *({"vllm_xargs": poison}, {"bootstrap_room": 7, "bootstrap_host": "10.0.0.1"}, {"KV_Transfer_Params": {}}),
    )
    statuses = []
    for each in fields:
        ((status, told),) = pair.ask_all([pair.behind(prompt, **each)])
        assert status in (200, 400), told
        statuses.append(status)
        assert status != 200 or told["choices"][0]["token_ids"] == expected[0]
    chat = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4, **poison}
    for path in ("/v1/chat/completions", "/v1/messages"):
        ((status, told),) = pair.ask_all([{"url": f"{pair.url}{path}", "body": chat}])
        assert status in (200, 400), told
        statuses.append(status)
    say(f"\nstatuses of poisoned requests: {statuses}")
    assert tokens_of(pair.ask_all([pair.behind(prompt)])) == expected
    for engine in (pair.prefill, pair.decode):
        assert engine.process is not None
        assert engine.process.poll() is None


def test_a_decode_that_comes_after_the_lease_is_recomputed(pair: Pair) -> None:
    """The ask lies on its way until the prefill engine has freed the blocks and written over them; vLLM answers it with
    200. What it says is thrown away."""
    (prompt,) = prompts(8, 1)
    expected = alone(pair, [prompt])
    before, expired = outcomes(pair), pair.metric(pair.prefill.url, "vllm:nixl_num_kv_expired_reqs_total")
    with pair.holding() as num_held, pair.asked([pair.behind(prompt)], 1) as told:
        until(num_held, 60, "the ask for a decode")
        time.sleep(LEASE_S + 2)
        overwrite(pair)
        (pair.folder / "hold").unlink()
    assert tokens_of(told) == expected
    came = {outcome: count - before[outcome] for outcome, count in outcomes(pair).items() if count > before[outcome]}
    say(f"\nthe held ask: {came}")
    assert sum(came.values()) == 1
    assert not came.keys() & {"completed", "given_back"}  # late; or given up, where writing over took too long
    assert pair.metric(pair.prefill.url, "vllm:nixl_num_kv_expired_reqs_total") > expired
    assert tokens_of(pair.ask_all([pair.behind(prompt)])) == expected


def test_what_vllm_says_to_a_late_decode(pair: Pair) -> None:
    """The same without Relevo: for the record."""
    asked = prompts(9, 8)
    expected = alone(pair, asked)
    nothing = dict.fromkeys(("remote_engine_id", "remote_block_ids", "remote_host", "remote_port"))
    first = [pair.alone(pair.prefill, each, 1) for each in asked]
    for each in first:
        each["body"]["kv_transfer_params"] = {"do_remote_decode": True, "do_remote_prefill": False, **nothing}
    tickets = [told["kv_transfer_params"] for _, told in pair.ask_all(first)]
    time.sleep(LEASE_S + 2)
    overwrite(pair)
    second = [pair.alone(pair.decode, each) for each in asked]
    for each, ticket in zip(second, tickets, strict=True):
        each["body"]["kv_transfer_params"] = ticket
    answers = pair.ask_all(second, width=1)
    said = [told["choices"][0]["token_ids"] if status == 200 else None for status, told in answers]
    num_wrong = sum(each != right for each, right in zip(said, expected, strict=True) if each is not None)
    statuses = [status for status, _ in answers]
    say(f"\nvLLM without a clock, a decode after the lease: statuses {statuses}, {num_wrong} wrong answers")


def test_a_gateway_that_stood_still_asks_for_nothing_late(pair: Pair) -> None:
    asked = prompts(3, 8)
    expected = alone(pair, asked, 64)
    assert pair.process is not None
    gateway = [pid for pid in descendants(pair.process.pid) if b"gateway" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    assert gateway
    late = pair.handoffs("late")
    with pair.asked([pair.behind(each, 64) for each in asked], 8) as told:
        until(lambda: pair.num_running(pair.prefill) or pair.num_running(pair.decode), 60, "a request")
        for pid in gateway:
            os.kill(pid, signal.SIGSTOP)
        time.sleep(LEASE_S + 3)
        overwrite(pair)
        for pid in gateway:
            os.kill(pid, signal.SIGCONT)
    assert tokens_of(told) == expected
    say(f"\n{pair.handoffs('late') - late:.0f} handoffs were late after the gateway stood still")


@pytest.mark.parametrize("which", ["prefill", "decode"])
def test_an_engine_that_dies_between_answer_and_pull_costs_no_answer(pair: Pair, which: str) -> None:
    engine = pair.decode if which == "decode" else pair.prefill
    asked = prompts({"prefill": 10, "decode": 12}[which], 3)  # the decode engine has cached those of the other case
    expected = alone(pair, asked)
    with pair.holding() as num_held, pair.asked([pair.behind(each) for each in asked], 3) as told:
        until(lambda: num_held() == len(asked), 60, "the asks for a decode")
        engine.kill()
        (pair.folder / "hold").unlink()
        engine.start()
    assert tokens_of(told) == expected
    pair.wait_paired()


@pytest.mark.parametrize("which", ["decode", "prefill"])
def test_a_killed_engine_costs_no_answer(pair: Pair, which: str) -> None:
    engine = pair.decode if which == "decode" else pair.prefill
    asked = prompts(5, 12)
    expected = alone(pair, asked, 128)
    with pair.asked([pair.behind(each, 128) for each in asked], 6) as told:
        until(lambda: pair.num_running(pair.decode), 60, "a stream")
        engine.kill()
        engine.start()
    assert_equal_but_for_ties(pair, asked, expected, tokens_of(told))
    pair.wait_paired()


@pytest.mark.parametrize("which", ["decode", "prefill"])
def test_sigterm_of_an_engine_loses_nothing(pair: Pair, which: str) -> None:
    engine = pair.decode if which == "decode" else pair.prefill
    asked = prompts(6, 12)
    expected = alone(pair, asked, 128)
    with pair.asked([pair.behind(each, 128) for each in asked], 6) as told:
        until(lambda: pair.num_running(pair.decode), 60, "a stream")
        engine.end()
        engine.start()
    assert_equal_but_for_ties(pair, asked, expected, tokens_of(told))
    pair.wait_paired()


def test_sigterm_of_relevo_loses_nothing(pair: Pair) -> None:
    asked = prompts(11, 6)
    expected = alone(pair, asked, 128)
    assert pair.process is not None
    with pair.asked([pair.behind(each, 128) for each in asked], 6) as told:
        until(lambda: pair.num_running(pair.decode) >= 6, 60, "six streams")
        pair.process.terminate()
        assert pair.process.wait(150) == 0
    assert_equal_but_for_ties(pair, asked, expected, tokens_of(told))
    pair.start_relevo()
    pair.wait_paired()


def assert_equal_but_for_ties(
    pair: Pair, asked: list[list[int]], expected: list[list[int]], said: list[list[int]]
) -> None:
    """Several were in a batch."""
    differing = [n for n in range(len(asked)) if said[n] != expected[n]]
    say(f"\n{len(asked) - len(differing)} of {len(asked)} equal")
    for n in differing:
        assert first_gap(pair, asked[n], expected[n], said[n]) < NEAR_TIE
