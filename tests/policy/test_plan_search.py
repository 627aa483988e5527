"""The planner's search: what it finds keeps the promise with room, at the least cost, and it says what it cannot do."""

from __future__ import annotations

from dataclasses import replace

import pytest
from planned_machines import demand, expert_shape, question, screen

from relevo.core.errors import SettingsError
from relevo.core.role import DECODE, PREFILL
from relevo.policy.perf.devices import DEVICES
from relevo.policy.perf.known_engines import KNOWN, known_engine
from relevo.policy.perf.parallelism import Parallelism
from relevo.policy.perf.roofline import RooflineModel
from relevo.policy.perf.step_time import decode_shape
from relevo.policy.perf.step_work import DeviceWork
from relevo.policy.scaling.candidates import Assumptions, Candidate, Refused, Stage, worker_kind
from relevo.policy.scaling.error_band import validity
from relevo.policy.scaling.inventory import parse_inventory
from relevo.policy.scaling.refine import RefineLimits, Verdict, cheapest, refine
from relevo.policy.scaling.search import LEAST_HEADROOM, Found, Infeasible, Question, search, worker_kinds
from relevo.policy.scaling.worker_times import SpeculativeTimes


def found(asked: Question) -> Found:
    answer = search(asked, screen(asked))
    assert isinstance(answer, Found)
    return answer


def stages(asked: Question, tensor: int = 1) -> tuple[Stage, Stage]:
    kinds, _ = worker_kinds(asked)
    prefill, decode = (
        next(kind for kind in kinds[role] if kind.parallelism == Parallelism(tensor=tensor))
        for role in (PREFILL, DECODE)
    )
    return Stage(PREFILL, prefill, 1), Stage(DECODE, decode, 1)


def test_what_is_found_keeps_the_promise_with_room_to_the_cliff() -> None:
    """Red when a plan is sized for the load itself: a small step of it would be over the edge."""
    asked = question(demand(rate=20.0))
    for candidate in found(asked).candidates:
        limit = screen(asked).load_limit(candidate, asked.demand, asked.targets)
        assert limit >= 0.99 / (1.0 - LEAST_HEADROOM), candidate.layout


def test_the_cheapest_comes_first_and_no_smaller_one_would_do() -> None:
    """Red when stages are not shrunk to what they need, or idle machines are left out of the cost."""
    asked = question(demand(rate=20.0))
    answer = found(asked)
    best = answer.candidates[0]
    assert best.weight == min(candidate.weight for candidate in answer.candidates)
    assert best.cost_per_h == sum(3.0 * stage.num_devices for stage in best.stages)
    with_room = asked.demand.at(1.0 / (1.0 - LEAST_HEADROOM))
    for stage in best.stages:
        smaller = best.with_workers(stage.role, -1)
        assert smaller is None or screen(asked).outlook(smaller, with_room).misses(asked.targets), smaller


def test_the_split_follows_what_the_load_is_made_of() -> None:
    """Red when one ratio is taken for every load: long prompts need prefill workers, long answers decode workers."""
    ratios = []
    for prompt, output in ((12_000, 50), (500, 1500)):
        asked = question(demand(prompt, output, rate=20.0), "128xH100@3/h")
        split = next(c for c in found(asked).candidates if c.is_split)
        ratios.append(split.stages[0].num_devices / split.stages[1].num_devices)
    assert ratios[0] > 1.0 > ratios[1]


def test_the_number_of_machines_follows_the_rate() -> None:
    """Red when the load level has no part in the plan."""
    sizes = [found(question(demand(rate=rate), "512xH100")).candidates[0].num_devices for rate in (2.0, 20.0, 80.0)]
    assert sizes == sorted(sizes) and sizes[0] < sizes[-1] / 5


@pytest.mark.parametrize(("ttft_s", "itl_s", "word"), [(0.02, 0.05, "TTFT"), (2.0, 0.0005, "ITL")])
def test_what_no_machine_cures_is_said_with_the_best_that_can_be(ttft_s: float, itl_s: float, word: str) -> None:
    """Red when machines are added for the time that a single request takes."""
    asked = question(demand(prompt=16_000), "4096xH100", ttft_s=ttft_s, itl_s=itl_s)
    answer = search(asked, screen(asked))
    assert isinstance(answer, Infeasible)
    assert (
        f"infeasible SLO, which more machines do not cure: {word}" in answer.sentence and "at best" in answer.sentence
    )
    easier = replace(asked, targets=replace(asked.targets, ttft_s=answer.ttft_p90_s * 1.5, itl_s=answer.itl_s * 1.5))
    assert isinstance(search(easier, screen(easier)), Found)


def test_too_few_devices_are_used_as_well_as_they_can_be() -> None:
    """Red when a short pool gives no answer, or one that leaves devices idle while prompts wait."""
    asked = question(demand(rate=200.0), "8xH100@3/h")
    answer = found(asked)
    assert not answer.is_enough
    best = answer.candidates[0]
    assert best.num_devices <= 8
    limits = [screen(asked).load_limit(c, asked.demand, asked.targets) for c in answer.candidates]
    assert limits[0] == max(limits) and 0.0 < limits[0] < 1.0


def test_a_slow_link_makes_not_splitting_the_answer() -> None:
    """Red when the transfer of KV is taken to cost nothing: at 0.2 GB/s no split candidate may be left."""
    slow = Assumptions(link_bytes_per_s=2e8)
    answer = found(question(demand(rate=20.0), assumed=slow))
    assert answer.candidates and not any(candidate.is_split for candidate in answer.candidates)
    assert any(candidate.is_split for candidate in found(question(demand(rate=20.0))).candidates)


def test_a_pool_of_two_kinds_computes_prompts_where_products_are_cheap() -> None:
    """Red when all stages have to be of one device: L40S multiply well and read slowly, H20 the other way round."""
    asked = question(demand(3000, 400, rate=10.0), "64xL40S@0.8/h,64xH20@1.2/h", itl_s=0.02)
    split = [c for c in found(asked).candidates if c.is_split]
    pairs = {tuple(stage.kind.device.name for stage in c.stages) for c in split}
    assert ("l40s", "h20") in pairs
    cheapest_of = {
        pair: min(c.weight for c in split if tuple(s.kind.device.name for s in c.stages) == pair) for pair in pairs
    }
    assert cheapest_of["l40s", "h20"] < cheapest_of.get(("h20", "l40s"), float("inf"))


def test_wide_expert_parallel_pools_are_searched() -> None:
    """Red when the width of a decode pool (attention data parallel, experts over 8 or 16) is no choice."""
    kinds, _ = worker_kinds(question(demand(), "64xH200", shape=expert_shape()))
    spreads = {kind.spread for kind in kinds[DECODE]}
    assert {"dp8 ep8", "dp16 ep16", "tp8"} <= spreads
    dense, _ = worker_kinds(question(demand(), "64xH200"))
    assert not any("dp" in kind.spread for kind in dense[DECODE])


def test_what_does_not_fit_is_refused_with_what_is_missing() -> None:
    """Red when a plan is made that could not start: weights, or one longest request without a place."""
    asked = question(demand(), "8xL40S", shape=expert_shape())
    assert worker_kinds(asked)[0][DECODE] == ()
    refused = worker_kinds(asked)[1]
    assert refused and all("GiB missing" in each.reason and each.missing_bytes > 0 for each in refused)
    (holding,) = parse_inventory("1xL40S")
    one = Parallelism()
    long = worker_kind(
        question(demand()).shape, holding, one, Assumptions(), chunk_tokens=2048, longest_tokens=400_000, block_size=16
    )
    assert isinstance(long, Refused) and "the longest request has 400,000" in long.reason


def test_a_longest_request_needs_one_rank_that_holds_it() -> None:
    """Red when the pools of attention ranks are taken as one: a sequence cannot be spread over them."""
    (holding,) = parse_inventory("8xH200")
    spread = Parallelism(attention_data=8, expert=8)
    made = worker_kind(
        expert_shape(), holding, spread, Assumptions(), chunk_tokens=8192, longest_tokens=1000, block_size=16
    )
    assert not isinstance(made, Refused)
    too_long = made.memory.num_pool_tokens // 8 + 16
    again = worker_kind(
        expert_shape(), holding, spread, Assumptions(), chunk_tokens=8192, longest_tokens=too_long, block_size=16
    )
    assert isinstance(again, Refused)


def test_waiting_grows_without_end_towards_the_edge_and_by_no_fixed_factor() -> None:
    """Red when TTFT is a prompt's time multiplied by a number."""
    asked = question(demand(rate=1.0))
    prefill, _ = stages(asked)
    look = screen(asked)
    full_at = 1.0 / look.prefill(prefill, asked.demand).load
    factors = [look.prefill(prefill, asked.demand.at(full_at * load)).ttft_p90_s for load in (0.1, 0.5, 0.9, 0.97)]
    assert factors == sorted(factors)
    assert factors[1] < 3 * factors[0] and factors[3] > 5 * factors[1]
    told = look.prefill(prefill, asked.demand.at(full_at * 1.01))
    assert told.ttft_p90_s == float("inf") and "prompts come faster" in told.limit


def test_hits_come_from_the_size_of_the_cache() -> None:
    """Red when a plan counts on cached tokens that its pools do not hold."""
    load = demand(cached=3000, rate=20.0)
    small, large = replace(load, cache_sizes=(0, 10**9)), replace(load, cache_sizes=(0, 1000))
    sizes = [found(question(each, "256xH100")).candidates[0].num_devices for each in (small, large)]
    assert sizes[0] > sizes[1]
    with_cpu = Assumptions(cpu_cache_bytes=10**9 * 131_072.0)
    assert found(question(small, "256xH100", assumed=with_cpu)).candidates[0].num_devices < sizes[0]


def test_speculation_is_an_input_that_shortens_gaps() -> None:
    """Red when accepted tokens are not told to the client, or verifying them costs nothing."""
    plain, drafted = (
        question(demand(), assumed=Assumptions(tokens_per_step=t, num_drafted=n)) for t, n in ((1, 0), (2.5, 3))
    )
    gaps = [screen(asked).decode(stages(asked)[1], asked.demand).itl_p90_s for asked in (plain, drafted)]
    assert gaps[1] < gaps[0] / 1.5
    base = screen(question(demand())).times.of(stages(question(demand()))[1].kind)
    rows = decode_shape(128, 128 * 1000)
    assert base.step_s(rows) / 2.5 < SpeculativeTimes(base, 2.5, 3).step_s(rows) < base.step_s(rows)
    with pytest.raises(SettingsError, match="cannot come of 1 drafted"):
        Assumptions(tokens_per_step=2.5, num_drafted=1)


@pytest.mark.parametrize(("engine", "device"), sorted(KNOWN))
def test_no_profile_reads_weights_faster_than_its_device_can(engine: str, device: str) -> None:
    """Red when a step's time is divided by something that has no part in it: one row must read all weights."""
    shape = question(demand()).shape
    model = RooflineModel(DeviceWork(shape, DEVICES[device], Parallelism()), known_engine(engine, device))
    read_s = (shape.weight_bytes - shape.vocab_size * shape.hidden_size * 2) / DEVICES[device].read_bytes_per_s
    assert model.step_s(decode_shape(1, 1.0)) >= read_s


def test_nothing_is_promised_beyond_what_was_measured() -> None:
    """Red when an engine, a device, a release of one, a length or a load that nobody measured is promised."""
    asked = question(demand())
    candidate = Candidate(stages(asked))
    assert validity(candidate, asked.demand, "vllm", 0.5).is_promised
    assert validity(candidate, asked.demand, "vllm", 0.5, "0.19.0rc1").is_promised
    beyond = {
        "no engine is named": validity(candidate, asked.demand, None, 0.5),
        "100,000 tokens are planned for": validity(
            candidate, replace(asked.demand, longest_tokens=100_000), "vllm", 0.5
        ),
        "97% full": validity(candidate, asked.demand, "vllm", 0.97),
        "vllm 0.30.0 was never measured (0.11.2 to 0.19.0 were)": validity(
            candidate, asked.demand, "vllm", 0.5, "0.30.0"
        ),
        "vllm v0.9 was never measured": validity(candidate, asked.demand, "vllm", 0.5, "v0.9"),
        "vllm on a100 was never measured": validity(
            Candidate(stages(question(demand(), "8xA100"))), asked.demand, "vllm", 0.5
        ),
    }
    for reason, told in beyond.items():
        assert not told.is_promised and reason in " ".join(told.outside)
        assert "error band, rung" in told.band.sentence


def test_refining_finds_the_least_that_holds_and_asks_for_no_candidate_twice() -> None:
    """Red when the simulator's answer does not lead: it may need more than the screen thought, or less."""
    asked = question(demand())
    for need in ((2, 3), (5, 2), (3, 4)):
        judged: list[Candidate] = []

        def judge(candidate: Candidate, need: tuple[int, int] = need, judged: list[Candidate] = judged) -> Verdict:
            assert candidate not in judged
            judged.append(candidate)
            prefill, decode = (stage.num_workers for stage in candidate.stages)
            return Verdict(prefill >= need[0] and decode >= need[1], PREFILL if prefill < need[0] else DECODE)

        first, second = stages(asked)
        start = Candidate((replace_workers(first, 3), replace_workers(second, 3)))
        best = cheapest(refine(start, asked.holdings, judge, RefineLimits()))
        assert best is not None and tuple(stage.num_workers for stage in best.stages) == need


def replace_workers(stage: Stage, number: int) -> Stage:
    return Stage(stage.role, stage.kind, number)


def test_refining_never_asks_for_devices_that_are_not_there() -> None:
    """Red when a stage grows past the inventory."""
    asked = question(demand(), "3xH100")
    seen = refine(Candidate(stages(asked)), asked.holdings, lambda c: Verdict(False, DECODE), RefineLimits())
    assert [candidate.num_devices for candidate in seen] == [2, 3]
    assert cheapest(seen) is None


def test_a_cliff_of_prompts_shows_in_their_stage_and_not_between_tokens() -> None:
    """One more session, and prompts wait without end while gaps stay as they were. Red when a plan is watched by a
    figure of the other stage, or its edge is not where that stage is full."""
    asked = question(demand(prompt=12_000, output=50, rate=20.0), "128xH100@3/h")
    split = next(c for c in found(asked).candidates if c.is_split).with_workers(DECODE, 2)
    assert split is not None
    asks = screen(asked)
    edge = asks.load_limit(split, asked.demand, asked.targets)
    before, at, beyond = (asks.outlook(split, asked.demand.at(edge * part)) for part in (0.8, 0.99, 1.1))
    assert at.stages[0].load > max(0.8, at.stages[1].load) and not at.misses(asked.targets)
    assert beyond.ttft_p90_s > 2.0 * before.ttft_p90_s and beyond.itl_p90_s < 1.15 * before.itl_p90_s
    missed = " ".join(beyond.misses(asked.targets))
    assert "ITL" not in missed and missed


@pytest.mark.parametrize("device", sorted(DEVICES))
def test_no_device_decodes_faster_than_it_reads_the_weights(device: str) -> None:
    """As above, of engines that were not measured there. Red when a default constant makes a step shorter than that."""
    for shape in (question(demand()).shape, expert_shape()):
        work = DeviceWork(shape, DEVICES[device], Parallelism())
        step_s = RooflineModel(work).step_s(decode_shape(1, 1.0))
        assert step_s >= sum(read_s for read_s, _ in work.work(decode_shape(1, 1.0)).parts)
