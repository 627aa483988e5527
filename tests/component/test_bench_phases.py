"""The load of an arm and known questions, against scripted servers: the same for all, and nothing is glossed over."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest
from fake_openai_server import FakeOpenAI, served

from relevo.bench.arms.phases import Phase, run_phases, sustained_per_s
from relevo.bench.arms.served import Served
from relevo.bench.client import OpenAIClient
from relevo.bench.role_client import RoleClient
from relevo.bench.roles.load import gaps_within, loaded
from relevo.bench.roles.questions import Asked, QuestionOptions, Questions
from relevo.core.errors import SettingsError, StartError
from relevo.core.role import HYBRID
from relevo.telemetry.latency import Slo
from relevo.telemetry.progress import SILENT
from relevo.workload.open_loop import Scale
from relevo.workload.phases import AGENTS, OUTPUT_HEAVY

SMALL = Scale(0.02, 0.02)
PHASES = [
    Phase(name="warm-up", kind=AGENTS, requests_per_s=20.0, seconds=0.2, is_warm_up=True),
    Phase(name="agents", kind=AGENTS, requests_per_s=20.0, seconds=0.5),
]
QUESTIONS = QuestionOptions(
    num_streams=3,
    num_stream_questions=2,
    num_prompt_questions=2,
    stream_prompt_tokens=(3, 4),
    stream_output_tokens=(5, 6),
    prompt_tokens=(20, 30),
    prompt_output_tokens=2,
    prompts_per_s=50.0,
)


def arm_at(url: str, returncode: int | None = None) -> Served:
    """A server that was started elsewhere, for the load."""
    process = SimpleNamespace(url=url, pid=None, returncode=returncode, log_path="server.log")
    return Served(cast(Any, process), RoleClient(url))


async def test_every_arm_meets_the_same_requests_at_the_same_times() -> None:
    """Red when an arm gets other prompts than the next one, or a phase counts requests of another."""
    fakes, runs = [FakeOpenAI(), FakeOpenAI()], []
    for fake in fakes:
        async with served(fake) as url:
            arm = arm_at(url)
            async with arm.operator:
                runs.append(await run_phases(arm, PHASES, 7, SMALL, SILENT, "arm"))
    prompts = [sorted(map(str, (body["prompt"] for body in fake.bodies))) for fake in fakes]
    assert prompts[0] == prompts[1] and len(prompts[0]) > 5
    bodies = [run.to_json(Slo(ttft_s=60.0, itl_s=60.0)) for run in runs]
    for body in bodies:
        assert [each["name"] for each in body["phases"]] == ["warm-up", "agents"]
        for one, start_s in zip(body["phases"], (0.0, 0.2), strict=True):
            assert all(start_s <= each["due_at_s"] < start_s + one["seconds"] for each in one["requests"])
            assert all(each["outcome"] == "completed" and each["met"] for each in one["requests"])
            assert one["generator_cpu"] > 0.0
    warm, agents = (body["phases"][number]["requests"] for number in (0, 1))
    assert warm and agents and [each["index"] for each in (*warm, *agents)] == list(range(len(warm) + len(agents)))
    due = [[each["due_at_s"] for each in body["phases"][1]["requests"]] for body in bodies]
    assert due[0] == pytest.approx(due[1], abs=1e-6)


async def test_a_server_that_ends_in_the_middle_is_no_result() -> None:
    async with served(FakeOpenAI()) as url:
        arm = arm_at(url, returncode=-9)
        async with arm.operator:
            with pytest.raises(StartError, match="ended with status -9 in the middle"):
                await run_phases(arm, PHASES, 0, SMALL, SILENT, "arm")


async def test_what_does_not_fit_is_refused_before_the_load() -> None:
    fake = FakeOpenAI()
    fake._model_entry = lambda: {"id": "m", "max_model_len": 20}  # type: ignore[method-assign,assignment,dict-item]
    async with served(fake) as url:
        arm = arm_at(url)
        async with arm.operator:
            with pytest.raises(SettingsError, match="--prompt-scale"):
                await run_phases(arm, PHASES, 0, Scale(1.0, 1.0), SILENT, "arm")
    assert not fake.bodies


async def test_capacity_is_what_was_completed_and_a_failure_is_said() -> None:
    async with served(FakeOpenAI(token_delay_s=0.001)) as url, (arm := arm_at(url)).operator:
        rate = await sustained_per_s(arm, OUTPUT_HEAVY, 4, 0.3, 0, SMALL, SILENT, "x")
    assert 5 < rate < 4 / 0.001
    async with served(FakeOpenAI(statuses=[400] * 9)) as url, (arm := arm_at(url)).operator:
        with pytest.raises(StartError, match="http_400"):
            await sustained_per_s(arm, OUTPUT_HEAVY, 4, 0.1, 0, SMALL, SILENT, "x")


async def asked_of(fake: FakeOpenAI, spoil: dict[str, Any]) -> list[Asked]:
    """After the answers were noted, `spoil` sets attributes of the server."""
    questions, asked = Questions(QUESTIONS), list[Asked]()
    async with served(fake) as url, OpenAIClient(url) as client:
        await questions.make(client)
        await questions.note_answers(client, SILENT)
        for name, value in spoil.items():
            setattr(fake, name, value)
        async with loaded(client, questions, asked, seed=0):
            await asyncio.sleep(0.3)
    return asked


async def test_answers_that_stay_the_same_are_not_wrong() -> None:
    asked = await asked_of(FakeOpenAI(token_delay_s=0.002), {})
    assert {one.kind for one in asked} == {"stream", "prompt"}
    assert not [one.wrong for one in asked if one.wrong]
    gaps = gaps_within(asked, 0, 2**63)
    assert len(gaps) == sum(len(one.record.chunk_at_ns) - 1 for one in asked if one.kind == "stream")


@pytest.mark.parametrize(
    ("spoil", "told"),
    [({"text": "other"}, "changed"), ({"reset_after": 2}, "lost"), ({"num_missing_tokens": 1}, "changed")],
)
async def test_a_lost_or_changed_answer_is_found(spoil: dict[str, Any], told: str) -> None:
    """Red when the comparison cannot fail."""
    asked = await asked_of(FakeOpenAI(), spoil)
    streams = [one.wrong for one in asked if one.kind == "stream"]
    assert streams and all(told in wrong for wrong in streams)


async def test_a_role_that_is_refused_is_said() -> None:
    async with served(FakeOpenAI()) as url, RoleClient(url) as operator:
        assert await operator.roles() == {}
        with pytest.raises(StartError, match="did not make a hybrid: HTTP 404"):
            await operator.give({"a": HYBRID}, "why")
