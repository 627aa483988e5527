"""The fake runner keeps the ModelRunner contract, and tells on every block that is not as it should be."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relevo.core.baton import SampleState
from relevo.core.events import StepCosts
from relevo.core.ids import RequestId
from relevo.core.plan import ScheduledRow
from relevo.core.ports import ModelRunner
from relevo.core.request import EngineRequest, SamplingParams
from relevo.engine.fake_model import FakeModel
from relevo.engine.fake_runner import FakeRunner, fake_layout
from relevo.engine.fake_script import Script, script_of
from relevo.kv.arena import Arena
from step_plans import plan_of

BLOCK_SIZE = 4
PROMPT = tuple(range(40, 53))  # three blocks and a token


def make_runner(**options: Any) -> FakeRunner:
    layout = fake_layout(BLOCK_SIZE, num_layers=2, num_kv_heads=3, head_size=2)
    return FakeRunner(Arena.create(layout, 32, shared=False), **options)


def make_request(prompt: tuple[int, ...] = PROMPT, eos: tuple[int, ...] = (), **sampling: object) -> EngineRequest:
    params = SamplingParams(**({"max_tokens": 12, "seed": 5, "temperature": 0.0} | sampling))
    return EngineRequest(request_id=RequestId("r"), prompt_token_ids=prompt, sampling=params, eos_token_ids=eos)


def step(
    runner: FakeRunner, request: EngineRequest, blocks: list[int], start: int, tokens: list[int], *samples, copy=()
):
    row = ScheduledRow(request, tokens, start, blocks, samples)
    return runner.execute(plan_of(row, copies=copy)).sampled[0]


def continue_alone(runner: FakeRunner, request: EngineRequest, blocks: list[int], sample: SampleState) -> list[int]:
    """Decode one token at a time until max_tokens, from prompt KV that is in the blocks and one output token."""
    while len(sample.output_token_ids) < request.sampling.max_tokens:
        start = len(request.prompt_token_ids) + len(sample.output_token_ids) - 1
        (token,) = step(runner, request, blocks, start, sample.output_token_ids[-1:], sample)
        sample.output_token_ids.append(token.token_id)
    return sample.output_token_ids


def generate(runner: FakeRunner, request: EngineRequest, blocks: list[int], cuts: tuple[int, ...] = ()) -> list[int]:
    """Prefill in chunks that end at `cuts`, then decode."""
    sample = SampleState(0)
    bounds = [0, *cuts, len(request.prompt_token_ids)]
    for start, end in pairwise(bounds):
        last = (sample,) if end == bounds[-1] else ()
        drawn = step(runner, request, blocks, start, list(request.prompt_token_ids[start:end]), *last)
        assert len(drawn) == len(last)
    sample.output_token_ids.append(drawn[0].token_id)
    return continue_alone(runner, request, blocks, sample)


def test_it_is_a_model_runner() -> None:
    runner = make_runner()
    runner.warm_up()
    assert isinstance(runner, ModelRunner)


@settings(max_examples=40, deadline=None)
@given(
    prompt=st.lists(st.integers(0, 256), min_size=1, max_size=30),
    blocks=st.permutations(range(32)),
    temperature=st.sampled_from([0.0, 1.0]),
    data=st.data(),
)
def test_any_chunks_over_any_blocks_give_the_reference(
    prompt: list[int], blocks: list[int], temperature: float, data: st.DataObject
) -> None:
    """Red if a fingerprint depends on how its run was cut, or on where its block lies."""
    cuts = data.draw(st.lists(st.integers(1, max(1, len(prompt) - 1)), unique=True, max_size=4).map(sorted))
    cuts = [cut for cut in cuts if cut < len(prompt)]
    runner = make_runner()
    request = make_request(tuple(prompt), temperature=temperature)
    want = runner.model.reference_tokens(prompt, request.sampling)
    assert generate(runner, request, blocks, tuple(cuts)) == want
    assert len(want) == 12


@settings(max_examples=40, deadline=None)
@given(position=st.integers(0, len(PROMPT) - 1), half=st.integers(0, 1), bit=st.integers(0, 63))
def test_one_flipped_bit_of_the_context_changes_the_output(position: int, half: int, bit: int) -> None:
    runner, request, blocks = make_runner(), make_request(), [9, 2, 30, 4, 17, 6, 11]
    first = generate(runner, request, blocks)[0]
    block = blocks[position // BLOCK_SIZE]
    runner._slots[block, half, position % BLOCK_SIZE] ^= 1 << bit
    tokens = continue_alone(runner, request, blocks, SampleState(0, [first]))
    assert tokens != runner.model.reference_tokens(PROMPT, request.sampling)


@pytest.mark.parametrize("wrong", [[2, 9, 30, 4], [9, 2, 5, 4], [9, 2, 2, 4]])
def test_swapped_foreign_and_doubled_blocks_change_the_output(wrong: list[int]) -> None:
    runner, request, rest = make_runner(), make_request(), [17, 6, 11]
    generate(runner, make_request(tuple(range(100, 113))), [3, 7, 5, 8, 1, 12, 13])  # another one's, 5 included
    first = generate(runner, request, [9, 2, 30, 4, *rest])[0]
    tokens = continue_alone(runner, request, [*wrong, *rest], SampleState(0, [first]))
    assert tokens != runner.model.reference_tokens(PROMPT, request.sampling)


def test_copies_come_before_rows() -> None:
    """Red if a fork computes on a partial last block that was not copied yet."""
    runner, request = make_runner(), make_request()
    first = generate(runner, request, [0, 1, 2, 3, 4, 5, 6])[0]
    sample, fork = SampleState(0, [first]), [0, 1, 2, 20, 21, 22, 23]
    (second,) = step(runner, request, fork, len(PROMPT), [first], sample, copy=[(3, 20)])
    sample.output_token_ids.append(second.token_id)
    assert continue_alone(runner, request, fork, sample) == runner.model.reference_tokens(PROMPT, request.sampling)


def test_rows_of_one_step_do_not_touch_each_other() -> None:
    runner = make_runner()
    requests = [make_request(tuple(range(base, base + 5)), num_logprobs=2) for base in (10, 60)]
    rows = tuple(
        ScheduledRow(request, list(request.prompt_token_ids), 0, blocks, (SampleState(0),))
        for request, blocks in zip(requests, ([0, 1], [2, 3]), strict=True)
    )
    together = runner.execute(plan_of(*rows, step_id=7))
    alone = [make_runner().execute(plan_of(row)).sampled[0] for row in rows]
    assert (together.step_id, list(together.sampled)) == (7, alone)


def test_seed_sample_and_position_matter_unless_greedy() -> None:
    model = FakeModel()

    def tokens(temperature: float, seed: int, sample_index: int) -> tuple[int, ...]:
        params = make_request(temperature=temperature, seed=seed).sampling
        return tuple(model.reference_tokens(PROMPT, params, sample_index=sample_index))

    places = [(1, 0), (1, 1), (2, 0)]
    assert len({tokens(0.0, *place) for place in places}) == 1
    assert len({tokens(1.0, *place) for place in places}) == 3
    params = make_request(temperature=1.0).sampling
    assert len({model.sample(5, params, (), 0, position).token_id for position in range(8)}) > 1


def test_n_continuations_are_drawn_from_one_row() -> None:
    runner, request = make_runner(), make_request(temperature=1.0, n=3)
    samples = tuple(SampleState(index) for index in range(3))
    drawn = step(runner, request, [0, 1, 2, 3], 0, list(PROMPT), *samples)
    want = [runner.model.reference_tokens(PROMPT, request.sampling, 1, sample_index=index)[0] for index in range(3)]
    assert [token.token_id for token in drawn] == want


def test_end_tokens_come_as_often_as_asked_and_never_where_forbidden() -> None:
    model, eos = FakeModel(eos_one_in=4), (256,)
    lengths = []
    for seed in range(200):
        params = make_request(max_tokens=40, temperature=1.0, seed=seed, min_tokens=3).sampling
        tokens = model.reference_tokens(PROMPT, params, eos_token_ids=eos)
        assert 256 not in tokens[:3]
        assert 256 not in tokens[:-1]
        lengths.append(len(tokens))
    assert 3 + 2 < sum(lengths) / len(lengths) < 3 + 6  # 3 + 4 expected
    params = make_request(max_tokens=200, ignore_eos=True).sampling
    tokens = model.reference_tokens(PROMPT, params, eos_token_ids=eos)
    assert len(tokens) == 200
    assert 256 not in tokens


def test_stop_tokens_wait_for_min_tokens() -> None:
    model = FakeModel(vocab_size=4)
    params = make_request(max_tokens=50, min_tokens=10, stop_token_ids=(1, 2), temperature=1.0).sampling
    tokens = model.reference_tokens(PROMPT, params)
    assert not {1, 2} & set(tokens[:10])
    assert tokens[-1] in (1, 2)


def test_logprobs() -> None:
    runner = make_runner()
    for num_logprobs, want in ((None, None), (0, 0), (3, 3)):
        request = make_request(num_logprobs=num_logprobs)
        (token,) = step(runner, request, [0, 1, 2, 3], 0, list(PROMPT), SampleState(0))
        if want is None:
            assert token.logprob is None
            continue
        assert token.logprob is not None
        assert len(token.top_logprobs) == want
        values = [logprob for _, logprob in token.top_logprobs]
        assert values == sorted(values, reverse=True)
        assert all(logprob < 0 for logprob in [token.logprob, *values])


def test_costs_are_slept(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr("relevo.engine.fake_runner.time.sleep", slept.append)
    arena = Arena.create(fake_layout(BLOCK_SIZE), 8, shared=False)
    runner = FakeRunner(arena, costs=StepCosts(base_s=1.0, per_token_s=0.5, per_kv_token_s=0.25))
    step(runner, make_request(), [0, 1, 2, 3], 0, list(PROMPT[:2]))
    step(runner, make_request(), [0, 1, 2, 3], 2, [7])
    assert slept == [1.0 + 2 * 0.5 + 2 * 0.25, 1.0 + 0.5 + 3 * 0.25]
    step(make_runner(), make_request(), [0, 1, 2, 3], 0, [1])
    assert len(slept) == 2


# ---- scripts ---------------------------------------------------------------------------------------------------------

SCRIPT: Script = script_of({"rule": [{"say": ["one, two, three", "eins, zwei, drei"]}]})


@settings(max_examples=30, deadline=None)
@given(blocks=st.permutations(range(32)), data=st.data())
def test_a_script_speaks_over_any_chunks_and_blocks(blocks: list[int], data: st.DataObject) -> None:
    """Red if the context that a line asks for depends on how a prompt was cut."""
    cuts = sorted(data.draw(st.sets(st.integers(1, len(PROMPT) - 1), max_size=3)))
    request = make_request()
    line = SCRIPT.rule_for(PROMPT).line(0)
    assert generate(make_runner(script=SCRIPT), request, blocks, tuple(cuts)) == list(line.token_ids[:12])


@settings(max_examples=40, deadline=None)
@given(position=st.integers(0, len(PROMPT)), half=st.integers(0, 1), bit=st.integers(0, 63))
def test_a_script_is_silent_over_a_wrong_context(position: int, half: int, bit: int) -> None:
    """The last position is the first output token's. Red if a line is said whatever the cache holds."""
    runner, request, blocks = make_runner(script=SCRIPT), make_request(), [9, 2, 30, 4, 17, 6, 11]
    line = SCRIPT.rule_for(PROMPT).line(0).token_ids
    first = generate(runner, request, blocks)[0]
    runner._slots[blocks[position // BLOCK_SIZE], half, position % BLOCK_SIZE] ^= 1 << bit
    tokens = continue_alone(runner, request, blocks, SampleState(0, [first, line[1]]))
    assert first == line[0] and tokens != list(line[:12])


def test_continuations_of_a_script_go_on_from_wherever_they_are() -> None:
    """On another runner, which never saw the prompt. Red if what is said next were kept anywhere but in the tokens."""
    request, blocks = make_request(), [3, 1, 2, 0, 7, 6, 5]
    for index in range(2):
        line = SCRIPT.rule_for(PROMPT).line(index).token_ids
        sample = SampleState(index, list(line[:5]))
        tokens = [*PROMPT, *line[:5]]
        (drawn,) = step(make_runner(script=SCRIPT), request, blocks, 0, tokens, sample)
        assert drawn.token_id == line[5]
