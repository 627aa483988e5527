"""`relevo bench openvino-server` over a scripted OpenVINO: what a comparison needs of it, and what people do wrong."""

from __future__ import annotations

import asyncio
import json
import shlex
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from fake_openai_server import FakeOpenAI, served
from fake_openvino import FakeOpenVino, Status
from typer.testing import CliRunner

from relevo.bench.openvino.engine import MODEL_FILE, TOKENIZER_FILE, EngineOptions, OpenVinoEngine, Sampling
from relevo.bench.openvino.server import LEAST_BODY_BYTES, CompletionServer
from relevo.bench.openvino.steps import LOOP_TURNS, WINDOW_TOKENS, StepLoop
from relevo.bench.peers.report import OURS, PeersReport
from relevo.bench.peers.run import PeersOptions, Target, compare_peers
from relevo.bench.server_process import ServerProcess, free_port
from relevo.cli.bench import app
from relevo.telemetry.progress import SILENT


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "smollm2-int8"
    folder.mkdir()
    for name in (MODEL_FILE, TOKENIZER_FILE):
        (folder / name).touch()
    return folder


@pytest.fixture
def openvino(monkeypatch: pytest.MonkeyPatch) -> FakeOpenVino:
    fake = FakeOpenVino()
    modules: dict[str, Any] = {}
    fake.install(modules)
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    return fake


@asynccontextmanager
async def asking(model: Path, max_model_len: int = 20_000) -> AsyncIterator[httpx.AsyncClient]:
    server = CompletionServer(OpenVinoEngine(EngineOptions(model=model)), "m", max_model_len)
    async with (
        server.stepping(),
        httpx.AsyncClient(transport=httpx.ASGITransport(server.app), base_url="http://server") as client,
    ):
        yield client


async def completion(client: httpx.AsyncClient, **fields: Any) -> httpx.Response:
    return await client.post("/v1/completions", json={"prompt": [1, 2, 3], "max_tokens": 5, "temperature": 0, **fields})


def events(response: httpx.Response) -> list[dict[str, Any]]:
    lines = [line.removeprefix("data: ") for line in response.text.split("\n\n") if line]
    assert lines.pop() == "[DONE]"
    return [json.loads(line) for line in lines]


# ---- answers ---------------------------------------------------------------------------------------------------------


async def test_streams_have_one_event_per_step_and_usage(model: Path, openvino: FakeOpenVino) -> None:
    """Red when tokens are held back until others follow: the first one's time would be another's."""
    async with asking(model) as client:
        response = await completion(client, stream=True, stream_options={"include_usage": True})
    *pieces, usage = events(response)
    assert [piece["choices"][0]["text"] for piece in pieces] == ["s", "o", "m", "e", " "]
    assert [piece["choices"][0]["finish_reason"] for piece in pieces] == [None] * 4 + ["length"]
    assert usage["usage"] == {"prompt_tokens": 3, "completion_tokens": 5, "total_tokens": 8}
    assert openvino.num_steps == 5


async def test_the_end_is_ignored_only_where_that_is_asked_for(model: Path, openvino: FakeOpenVino) -> None:
    openvino.ends_after = 3
    async with asking(model) as client:
        ended = (await completion(client)).json()["choices"][0]
        ignored = (await completion(client, ignore_eos=True)).json()["choices"][0]
    assert (ended["text"], ended["finish_reason"]) == ("so", "stop")
    assert (ignored["text"], ignored["finish_reason"]) == ("some ", "length")


async def test_requests_of_one_time_share_steps(model: Path, openvino: FakeOpenVino) -> None:
    """Red when a request waits for another's end."""
    async with asking(model) as client:
        answers = await asyncio.gather(*(completion(client, max_tokens=40, stream=True) for _ in range(8)))
    assert [len(events(answer)) for answer in answers] == [40] * 8
    assert openvino.most_at_once == 8
    assert openvino.num_steps < 2 * 40


@pytest.mark.parametrize("ends_in", ["", "🎉"])
async def test_text_of_any_length_comes_whole(model: Path, openvino: FakeOpenVino, ends_in: str) -> None:
    """Red when a piece is lost or doubled where the window of tokens is cut, or half a character is sent."""
    openvino.text = "né 🎉 中文 " * (WINDOW_TOKENS // 4) + ends_in
    num_tokens = len(openvino.text.encode())
    async with asking(model) as client:
        response = await completion(client, max_tokens=num_tokens, stream=True)
    pieces = [event["choices"][0]["text"] for event in events(response)]
    assert "".join(pieces) == openvino.text
    assert len(pieces) == num_tokens


async def test_text_is_encoded_and_ids_are_taken_as_they_are(model: Path, openvino: FakeOpenVino) -> None:
    async with asking(model) as client:
        await completion(client, prompt="ab")
        await completion(client, prompt=[7, 8, 9], temperature=0.5, top_p=0.9, seed=4)
    text, ids = openvino.handles
    assert (text.prompt, ids.prompt) == ([97, 98], [7, 8, 9])
    assert not text.config.do_sample
    assert (ids.config.do_sample, ids.config.temperature, ids.config.top_p, ids.config.rng_seed) == (True, 0.5, 0.9, 4)


async def test_one_who_leaves_is_cancelled(model: Path, openvino: FakeOpenVino) -> None:
    """Red when the library goes on computing for nobody."""
    steps = StepLoop(OpenVinoEngine(EngineOptions(model=model)))
    running = asyncio.create_task(steps.run())
    answer = steps.generate([1], Sampling(max_tokens=10_000))
    await anext(answer)
    (handle,) = openvino.handles
    await answer.aclose()
    assert handle.status is Status.CANCEL
    for _ in range(LOOP_TURNS + 2):  # a step takes it out
        await asyncio.sleep(0)
    assert not openvino.has_non_finished_requests()
    running.cancel()


def test_options_reach_the_library(model: Path, openvino: FakeOpenVino) -> None:
    properties = {"INFERENCE_PRECISION_HINT": "f32"}
    OpenVinoEngine(EngineOptions(model=model, num_threads=2, max_num_batched_tokens=77, properties=properties))
    (scheduler,) = openvino.schedulers
    assert (scheduler.max_num_batched_tokens, scheduler.enable_prefix_caching) == (77, False)
    assert (openvino.device, openvino.properties) == ("CPU", {**properties, "INFERENCE_NUM_THREADS": 2})


# ---- faults ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "status", "words"),
    [
        ({"n": 2}, 400, "unknown field `n`"),
        ({"prompt": []}, 400, "at least one token"),
        ({"prompt": [1, 100_000]}, 400, "100000 tokens, and no 100000"),
        ({"prompt": {"a": 1}}, 400, "prompt"),
        ({"max_tokens": 0}, 400, "max_tokens"),
        ({"model": "other"}, 404, "this server has m"),
    ],
)
async def test_what_it_cannot_do_is_refused(
    model: Path, openvino: FakeOpenVino, fields: dict[str, Any], status: int, words: str
) -> None:
    async with asking(model) as client:
        response = await completion(client, **fields)
    assert response.status_code == status
    assert words in response.json()["error"]["message"]
    assert not openvino.handles


@pytest.mark.parametrize(
    ("fields", "status", "words"),
    [
        ({"prompt": [1] * 16}, 400, "a prompt of 16 tokens and 5 more are above 20; send less, lower max_tokens"),
        ({"prompt": "a" * 16}, 400, "a prompt of 16 tokens"),
        ({"max_tokens": 18}, 400, "3 tokens and 18 more"),
        ({"prompt": "a" * LEAST_BODY_BYTES}, 413, f"larger than {LEAST_BODY_BYTES} bytes"),
    ],
)
async def test_what_is_too_long_is_refused(
    model: Path, openvino: FakeOpenVino, fields: dict[str, Any], status: int, words: str
) -> None:
    """Red when the library is given what its cache or this process's memory has no room for."""
    async with asking(model, max_model_len=20) as client:
        response = await completion(client, **fields)
        assert (response.status_code, len(openvino.handles)) == (status, 0)
        assert words in response.json()["error"]["message"]
        assert (await completion(client, prompt=[1] * 15)).status_code == 200


async def test_a_body_without_an_end_is_not_read_on(model: Path, openvino: FakeOpenVino) -> None:
    num_sent = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal num_sent
        while num_sent < 10 * LEAST_BODY_BYTES:
            num_sent += 1024
            yield b" " * 1024

    async with asking(model, max_model_len=20) as client:
        response = await client.post("/v1/completions", content=endless())
    assert response.status_code == 413
    assert num_sent <= LEAST_BODY_BYTES + 1024


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"fails_at_step": 1}, "OpenVINO failed: out of memory"),
        ({"add_error": "too long"}, "OpenVINO refused the request: too long"),
        ({"has_room": False}, "raise --kv-cache-gb"),
    ],
)
async def test_a_request_that_fails_says_why(
    model: Path, openvino: FakeOpenVino, change: dict[str, Any], words: str
) -> None:
    """Red when a client waits for ever."""
    for name, value in change.items():
        setattr(openvino, name, value)
    async with asking(model) as client:
        whole = await completion(client)
        assert whole.status_code == 500
        assert words in whole.json()["error"]["message"]
        openvino.num_steps = 0
        assert words in (await completion(client, stream=True)).text


async def test_a_failed_step_fails_its_requests_alone(model: Path, openvino: FakeOpenVino) -> None:
    openvino.fails_at_step = 2
    async with asking(model) as client:
        assert (await completion(client)).status_code == 500
        assert (await completion(client)).status_code == 200


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda path: None, "does not exist"),
        (lambda path: path.write_text("x"), "no GGUF"),
        (lambda path: path.mkdir(), f"no {MODEL_FILE}; give the folder of an export"),
        (lambda path: (path.mkdir(), (path / "config.json").touch()), "optimum-cli export openvino --model"),
        (lambda path: (path.mkdir(), (path / MODEL_FILE).touch()), "pip install openvino-tokenizers"),
    ],
)
def test_a_wrong_model_is_one_sentence(tmp_path: Path, openvino: FakeOpenVino, make: Any, words: str) -> None:
    make(tmp_path / "model.bin")
    result = CliRunner().invoke(app, ["openvino-server", str(tmp_path / "model.bin"), "--port", "0"])
    assert (result.exit_code, "Traceback" in result.output) == (2, False)
    assert words in result.output


def test_a_model_that_does_not_load_is_one_sentence(model: Path, openvino: FakeOpenVino) -> None:
    openvino.load_error = "Exception from src/inference/src/cpp/core.cpp:123:\n\nUnsupported rt_info version\n"
    result = CliRunner().invoke(app, ["openvino-server", str(model), "--port", "0"])
    assert result.exit_code == 2
    assert "Unsupported rt_info version" in result.output
    assert "core.cpp" not in result.output


def test_a_missing_package_is_one_sentence(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "openvino_genai", None)
    result = CliRunner().invoke(app, ["openvino-server", str(model), "--port", "0"])
    assert result.exit_code == 2
    assert "run: pip install openvino-genai" in result.output


def test_a_taken_port_is_found_before_the_model_is_loaded(model: Path, openvino: FakeOpenVino) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = CliRunner().invoke(app, ["openvino-server", str(model), "--port", str(port)])
    assert result.exit_code == 2
    assert "choose another --port" in result.output
    assert not openvino.schedulers


def test_a_wrong_property_is_refused(model: Path) -> None:
    result = CliRunner().invoke(app, ["openvino-server", str(model), "--property", "f32"])
    assert result.exit_code == 2
    assert "'f32' is not NAME=VALUE" in result.output


# ---- as a process ----------------------------------------------------------------------------------------------------


def command(model: Path) -> str:
    folder = str(Path(__file__).parent)
    program = (
        f"import sys; sys.path.insert(0, {folder!r}); from fake_openvino import FakeOpenVino; "
        "FakeOpenVino().install(); from relevo.cli.main import main; main()"
    )
    return shlex.join([sys.executable, "-c", program, "bench", "openvino-server", str(model), "--port", "{port}"])


async def test_a_comparison_starts_it_and_asks_it_by_token_ids(tmp_path: Path, model: Path) -> None:
    peer = Target(name="openvino", command=command(model))
    report = PeersReport()
    async with served(FakeOpenAI()) as url:
        options = PeersOptions(
            ours=Target(name=OURS, url=url),
            peers=[peer],
            model=None,
            contexts=[9],
            decode_len=4,
            prefill_lens=[12],
            streams=[3],
            stream_prompt_len=10,
            stream_output_len=5,
            rounds=1,
            repeats=1,
            start_timeout_s=60.0,
            log_dir=tmp_path / "logs",
            seed=1,
        )
        await compare_peers(options, report, SILENT)
    assert not report.has_faults, report.notes()
    assert report.result("openvino").prompt_form == "token ids"
    assert all(row.best_peer == "openvino" for row in report.comparisons())


async def test_ctrl_c_ends_it(tmp_path: Path, model: Path) -> None:
    port = free_port()
    argv = [part.replace("{port}", str(port)) for part in shlex.split(command(model))]
    async with ServerProcess(argv, port, tmp_path / "log") as process:
        await process.stop()
        assert process.returncode == 0
