"""Several models behind one gateway: a request reaches the model it names and nothing of another."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any

import pytest
from metered_gateway import NOW_MS, metered
from prometheus_client.parser import text_string_to_metric_families
from scripted_gateway import (
    ChatTemplate,
    Hang,
    RecordingMetrics,
    Rig,
    ScriptedGenerator,
    Step,
    events,
    ids,
    says,
    scripted_app,
    served_model,
    status_of,
    streamed_text,
)

from relevo.core import errors
from relevo.gateway.metering.ledger import UsageFilter, usage_sums
from relevo.gateway.text.served_models import ServedModel, ServedModels
from relevo.orchestrator.ports import EngineStatus
from relevo.policy.billing.pricing import ModelPrice
from relevo.telemetry.metrics import GatewayMetrics

NAMES = ["small", "large", "large-alias"]
CHAT = {"messages": [{"role": "user", "content": "hi"}]}


@dataclass
class TwoModels:
    small: ScriptedGenerator
    large: ScriptedGenerator
    rig: Rig

    async def complete(self, model: str | None, **fields: Any) -> Any:
        return await self.rig.complete(model=model, **fields)


def models_of(small: ScriptedGenerator, large: ScriptedGenerator) -> list[ServedModel]:
    return [
        served_model(
            small, names=("small",), max_model_len=50, chat_template=None, model_hash="s", draw_seed=lambda: 1
        ),
        served_model(
            large,
            names=("large", "large-alias"),
            max_model_len=100,
            chat_template=ChatTemplate("L:{{ messages[0].content }}"),
            generation_defaults={"temperature": 0.25},
            eos_token_ids=(7,),
            model_hash="l",
            draw_seed=lambda: 2,
        ),
    ]


def two_models(small: list[Step] | None = None, large: list[Step] | None = None, **context: Any) -> TwoModels:
    generators = (
        ScriptedGenerator(small or says("from small")),
        ScriptedGenerator(large or says("from large"), route="decode large/unified-0: of course"),
    )
    metrics = context.pop("metrics", None) or RecordingMetrics()
    app = scripted_app(ServedModels(models_of(*generators)), metrics, **context)
    return TwoModels(*generators, Rig(generators[0], metrics, app))


async def test_every_name_of_every_model_is_listed_with_its_own_length() -> None:
    cards = (await two_models().rig.get("/v1/models")).json()["data"]
    assert [(card["id"], card["root"], card["max_model_len"]) for card in cards] == [
        ("small", "small", 50), ("large", "large", 100), ("large-alias", "large", 100),
    ]  # fmt: skip
    assert (await two_models().rig.get("/v1/models/large-alias")).json() == cards[2]
    assert (await two_models().rig.get("/")).json()["models"] == NAMES


@pytest.mark.parametrize("stream", [False, True])
async def test_a_request_reaches_the_model_it_names_and_no_other(stream: bool) -> None:
    both = two_models()
    for model, said in (("small", "from small"), ("large", "from large"), ("large-alias", "from large")):
        answer = await both.complete(model, stream=stream)
        text = streamed_text(events(answer)) if stream else answer.json()["choices"][0]["text"]
        named = events(answer)[0]["model"] if stream else answer.json()["model"]
        assert (text, named) == (said, model)
    assert (len(both.small.requests), len(both.large.requests)) == (1, 2)


async def test_each_model_has_its_own_template_defaults_length_and_fingerprint() -> None:
    """Red when anything of the text side is taken from the first model instead of the one that was named."""
    both = two_models()
    refused = await both.rig.post("/v1/chat/completions", {"model": "small"} | CHAT)
    assert "no chat template" in refused.json()["error"]["message"]
    chat = await both.rig.post("/v1/chat/completions", {"model": "large"} | CHAT)
    asked = both.large.requests[0]
    assert asked.prompt_token_ids == tuple(ids("L:hi"))
    assert (asked.sampling.temperature, asked.sampling.seed, asked.eos_token_ids) == (0.25, 2, (7,))
    plain = await both.complete("small")
    assert both.small.requests[0].sampling.temperature == 1.0 and both.small.requests[0].sampling.seed == 1
    assert plain.json()["system_fingerprint"] != chat.json()["system_fingerprint"]
    too_long = await both.complete("small", prompt="x" * 60)
    assert "maximum context length is 50 tokens" in too_long.json()["error"]["message"]
    assert (await both.complete("large", prompt="x" * 60)).status_code == 200
    tokens = await both.rig.post("/tokenize", {"model": "large", "prompt": "ab"})
    assert tokens.json()["max_model_len"] == 100
    routed = await both.rig.post("/v1/completions", {"model": "large", "prompt": "hi"}, **{"x-relevo-explain": "1"})
    assert routed.headers["x-relevo-route"].startswith("decode large/unified-0")


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize"])
async def test_an_unknown_model_is_told_which_exist(path: str) -> None:
    both = two_models()
    body = {"prompt": "hi", "tokens": [1]} | (CHAT if "chat" in path else {})
    unknown = await both.rig.post(path, {"model": "huge"} | body)
    error = unknown.json()["error"]
    assert (unknown.status_code, error["code"], error["param"]) == (404, "model_not_found", "model")
    assert error["message"] == "The model `huge` does not exist. Models of this server: small, large, large-alias."
    missing = await both.rig.post(path, body)
    assert (missing.status_code, missing.json()["error"]["param"]) == (400, "model"), "no model is the obvious one"
    assert not both.small.requests and not both.large.requests


async def test_an_overloaded_model_refuses_for_itself_alone() -> None:
    both = two_models(small=[errors.Overloaded("full", retry_after_s=3)])
    assert (await both.complete("small")).status_code == 429
    assert (await both.complete("large")).status_code == 200


def down(reason: str = "unified-0: restarting") -> EngineStatus:
    return EngineStatus(ready=False, reason=reason, workers=status_of(ready=True).workers)


async def test_a_model_that_is_down_is_told_and_leaves_the_others_in_rotation() -> None:
    """Red when a probe takes every model away because one cannot serve, or hides which one."""
    both = two_models()
    both.large.engine_status = down()
    ready = await both.rig.get("/ready")
    said = ready.json()
    assert (ready.status_code, said["ready"]) == (200, True)
    assert said["models"]["large"]["reason"] == "unified-0: restarting"
    assert said["models"]["small"] == {"ready": True, "roles": {"unified": {"workers": 1, "ready": 1}}}
    assert [(worker["model"], worker["worker_id"]) for worker in said["workers"]] == [("small", "w0"), ("large", "w0")]
    health = await both.rig.get("/health")
    assert (health.status_code, health.json()["status"]) == (200, "degraded")
    assert health.json()["reason"] == "large: unified-0: restarting"
    for model, status in (("small", 200), ("large", 503), ("large-alias", 503), ("huge", 404)):
        assert (await both.rig.get(f"/ready?model={model}")).status_code == status
    both.small.engine_status = down("w0: gone")
    ready = await both.rig.get("/ready")
    assert ready.status_code == 503
    assert ready.json()["reason"] == "small: w0: gone; large: unified-0: restarting"


async def test_a_server_is_ready_once_every_model_has_started() -> None:
    """But a gateway that was restarted while a worker of one model was away serves the others at once."""
    starting = status_of(ready=False, reason="w0: starting")
    starting = replace(starting, workers=(replace(starting.workers[0], ready=False, epoch=0),))
    for is_restarted, status in ((False, 503), (True, 200)):
        both = two_models(is_restarted=is_restarted)
        both.large.engine_status = starting
        assert (await both.rig.get("/ready")).status_code == status
        assert (await both.rig.get("/ready?model=small")).status_code == 200
        assert (await both.rig.get("/ready?model=large")).status_code == 503


async def test_series_carry_the_name_of_the_model() -> None:
    both = two_models(metrics=GatewayMetrics(["small", "large"]), large=says("x" * 20))
    for model in ("small", "small", "large"):
        assert (await both.complete(model)).status_code == 200
    text = (await both.rig.get("/metrics")).text
    samples = [s for family in text_string_to_metric_families(text) for s in family.samples]

    def by_model(name: str) -> dict[str, float]:
        return {s.labels["model_name"]: s.value for s in samples if s.name == name}

    assert by_model("vllm:time_to_first_token_seconds_count") == {"small": 2, "large": 1}
    assert by_model("vllm:request_generation_tokens_sum") == {"small": 22, "large": 21}
    assert by_model("relevo:worker_up") == {"small": 1, "large": 1}, "one worker each, of the same id"
    assert by_model("relevo:requests_in_flight") == {"small": 0, "large": 0}
    assert {s.labels["model_name"] for s in samples if s.name == "relevo:handoffs_total"} == {"small", "large"}


async def test_each_model_has_its_price_and_its_rows() -> None:
    async with metered() as m:
        m.meter.prices = {
            name: ModelPrice(input_cost_per_token=Decimal(cost), output_cost_per_token=Decimal(0))
            for name, cost in (("small", 1), ("large", 10), ("large-alias", 100))
        }
        both = two_models(meter=m.meter)
        for model in NAMES:
            assert (await both.complete(model, prompt="abc")).status_code == 200
        rows = await m.written()
        assert {row.model: row.cost for row in rows} == {"small": "3", "large": "30", "large-alias": "300"}
        sums = usage_sums(m.connection, ("model",), UsageFilter(since_ms=NOW_MS - 1))
        assert len(list(sums)) == len(NAMES)


async def test_a_stream_of_one_model_goes_on_while_another_fails() -> None:
    both = two_models(small=[(0, ids("a"), None), errors.WorkerLost("gone")], large=[(0, ids("o"), None), Hang()])
    running = asyncio.create_task(both.complete("large", stream=True))
    await both.large.hanging.wait()
    broken = await both.complete("small", stream=True)
    assert events(broken)[-1]["error"]["code"] == "worker_lost"
    assert (both.small.num_open, both.large.num_open) == (0, 1)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert both.large.num_open == 0
