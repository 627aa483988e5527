"""What is refused, with which status, code and param; and how engine errors look before and inside a stream."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from scripted_gateway import MAX_MODEL_LEN, VOCAB_SIZE, Rig, events, ids, rig, says

from relevo.core import errors
from relevo.core.request import FinishReason
from relevo.gateway.http.call import Call
from relevo.gateway.http.errors import HTTP_STATUSES, ErrorReply
from relevo.gateway.http.route import Route, RouteTable
from relevo.gateway.openai.errors import OPENAI_ERRORS
from relevo.gateway.openai.unsupported import REFUSED_FIELDS
from relevo.gateway.routes import ROUTES
from relevo.gateway.text.chat_template import ChatTemplate

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
WIDE = ("utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-le", "utf-32-be")
MESSAGES = [{"role": "user", "content": "hi"}]
SCHEMA_FORMAT = {"type": "json_schema", "json_schema": {}}
NAMED_TOOL = {"type": "function", "function": {"name": "f"}}


def chat(**fields: Any) -> dict[str, Any]:
    return {"messages": MESSAGES} | fields


def text(**fields: Any) -> dict[str, Any]:
    return {"prompt": "hi"} | fields


REFUSED: list[tuple[str, dict[str, Any], str | None]] = [
    (CHAT, {}, "messages"),
    (CHAT, {"messages": None}, "messages"),
    (CHAT, chat(messages=[]), "messages"),
    (CHAT, chat(messages="hi"), "messages"),
    (CHAT, chat(messages=["hi"]), "messages[0]"),
    (CHAT, chat(messages=[{"content": "hi"}]), "messages[0].role"),
    (CHAT, chat(messages=[{"role": 5, "content": "hi"}]), "messages[0].role"),
    (CHAT, chat(messages=[{"role": "user"}]), "messages[0].content"),
    (CHAT, chat(messages=[{"role": "user", "content": 5}]), "messages[0].content"),
    (CHAT, chat(messages=[{"role": "user", "content": ["hi"]}]), "messages[0].content[0]"),
    (CHAT, chat(model=5), "model"),
    (CHAT, chat(stream="yes"), "stream"),
    (CHAT, chat(stream_options=True), "stream_options"),
    (CHAT, chat(stream_options={"include_usage": 1}), "stream_options.include_usage"),
    (CHAT, chat(n=0), "n"),
    (CHAT, chat(n=129), "n"),
    (CHAT, chat(n=1.5), "n"),
    (CHAT, chat(max_tokens=0), "max_tokens"),
    (CHAT, chat(max_tokens=-1), "max_tokens"),
    (CHAT, chat(max_tokens="5"), "max_tokens"),
    (CHAT, chat(max_tokens=True), "max_tokens"),
    (CHAT, chat(max_tokens=10**30), "max_tokens"),
    (CHAT, chat(max_completion_tokens=0), "max_completion_tokens"),
    (CHAT, chat(min_tokens=-1), "min_tokens"),
    (CHAT, chat(min_tokens=6, max_tokens=5), "min_tokens"),
    (CHAT, chat(min_tokens=MAX_MODEL_LEN), "min_tokens"),
    (CHAT, chat(temperature=-0.1), "temperature"),
    (CHAT, chat(temperature="hot"), "temperature"),
    (CHAT, chat(temperature=1e300), "temperature"),
    (CHAT, chat(top_p=0), "top_p"),
    (CHAT, chat(top_p=1.01), "top_p"),
    (CHAT, chat(top_k=-2), "top_k"),
    (CHAT, chat(top_k=0.5), "top_k"),
    (CHAT, chat(min_p=-0.1), "min_p"),
    (CHAT, chat(min_p=1.1), "min_p"),
    (CHAT, chat(frequency_penalty=2.1), "frequency_penalty"),
    (CHAT, chat(presence_penalty=-2.1), "presence_penalty"),
    (CHAT, chat(repetition_penalty=0), "repetition_penalty"),
    (CHAT, chat(logit_bias={"5": 101}), "logit_bias"),
    (CHAT, chat(logit_bias={"a": 1}), "logit_bias"),
    (CHAT, chat(logit_bias={"-1": 1}), "logit_bias"),
    (CHAT, chat(logit_bias={str(VOCAB_SIZE): 1}), "logit_bias"),
    (CHAT, chat(logit_bias={"²": 1}), "logit_bias"),
    (CHAT, chat(logit_bias=[1]), "logit_bias"),
    (CHAT, chat(seed="x"), "seed"),
    (CHAT, chat(stop=5), "stop"),
    (CHAT, chat(stop=["a", 5]), "stop[1]"),
    (CHAT, chat(stop=[""]), "stop[0]"),
    (CHAT, chat(stop=["a"] * 65), "stop"),
    (CHAT, chat(stop_token_ids=[VOCAB_SIZE]), "stop_token_ids"),
    (CHAT, chat(stop_token_ids=[-1]), "stop_token_ids[0]"),
    (CHAT, chat(logprobs=True, top_logprobs=21), "top_logprobs"),
    (CHAT, chat(top_logprobs=2), "top_logprobs"),
    (CHAT, chat(logprobs=3), "logprobs"),
    (CHAT, chat(priority="high"), "priority"),
    (CHAT, chat(cache_salt=""), "cache_salt"),
    (CHAT, chat(cache_salt="a/b"), "cache_salt"),
    (CHAT, chat(request_id="a\nb"), "request_id"),
    (CHAT, chat(response_format=SCHEMA_FORMAT), "response_format.json_schema.schema"),
    (CHAT, chat(response_format={"type": "no_such_format"}), "response_format.type"),
    *((CHAT, chat(**{name: {"a": 1}}), name) for name in REFUSED_FIELDS),
    (TEXT, text(guided_choice=["a", 1]), "guided_choice"),
    (CHAT, chat(web_search_options={}), "web_search_options"),
    (CHAT, chat(modalities=["text", "audio"]), "modalities"),
    (CHAT, chat(chat_template="{{ 1 }}"), "chat_template"),
    (CHAT, chat(chat_template_kwargs={"messages": []}), "chat_template_kwargs"),
    (CHAT, chat(add_generation_prompt=True, continue_final_message=True), "continue_final_message"),
    (CHAT, chat(tools=[NAMED_TOOL], tool_choice="required"), "tool_choice"),
    (CHAT, chat(tools=[NAMED_TOOL], tool_choice=NAMED_TOOL), "tool_choice"),
    (CHAT, chat(tool_choice="sometimes"), "tool_choice"),
    (CHAT, chat(tools="f"), "tools"),
    (CHAT, chat(echo=True), "echo"),
    (CHAT, chat(use_beam_search=True), "use_beam_search"),
    (TEXT, {}, "prompt"),
    (TEXT, text(prompt=""), "prompt"),
    (TEXT, text(prompt=[]), "prompt"),
    (TEXT, text(prompt=[[]]), "prompt"),
    (TEXT, text(prompt=["a", ""]), "prompt"),
    (TEXT, text(prompt=["a", 5]), "prompt"),
    (TEXT, text(prompt=[[5], 5]), "prompt"),
    (TEXT, text(prompt={"a": 1}), "prompt"),
    (TEXT, text(prompt=[1.5]), "prompt[0]"),
    (TEXT, text(prompt=[VOCAB_SIZE]), "prompt"),
    (TEXT, text(prompt=[-1]), "prompt[0]"),
    (TEXT, text(prompt=["a"] * 257), "prompt"),
    (TEXT, text(suffix="x"), "suffix"),
    (TEXT, text(best_of=3), "best_of"),
    (TEXT, text(max_tokens=0), "max_tokens"),
    (TEXT, text(prompt_logprobs=21), "prompt_logprobs"),
    (TEXT, text(prompt_logprobs=True), "prompt_logprobs"),
    (TEXT, text(prompt_logprobs=-1), "prompt_logprobs"),
    (CHAT, chat(max_tokens=0), "max_tokens"),
    (TEXT, text(logprobs=21), "logprobs"),
    (TEXT, text(logprobs=True), "logprobs"),
    ("/tokenize", {}, "prompt"),
    ("/tokenize", {"prompt": "a", "messages": MESSAGES}, "prompt"),
    ("/detokenize", {}, "tokens"),
    ("/detokenize", {"tokens": [VOCAB_SIZE]}, "tokens"),
]


@pytest.mark.parametrize(("path", "body", "param"), REFUSED, ids=lambda value: str(value)[:60])
async def test_a_bad_field_is_a_400_that_names_it(path: str, body: dict[str, Any], param: str | None) -> None:
    r = rig(says("x"))
    response = await r.post(path, body)
    error = response.json()["error"]
    assert (response.status_code, error["code"], error["param"]) == (400, "invalid_request", param), error
    assert error["type"] == "invalid_request_error" and error["message"]
    assert response.headers["x-should-retry"] == "false"
    assert r.generator.requests == [] and r.metrics.records == []


ACCEPTED: list[dict[str, Any]] = [
    chat(temperature=0, n=2, top_k=-1, top_p=1, min_p=0),
    chat(top_logprobs=0),
    chat(stop=[]),
    chat(response_format={"type": "text"}),
    chat(bad_words=[], functions=[], grammar="", modalities=["text"], guided_json=None),
    chat(unknown_field=[1], kv_transfer_params={"do_remote_decode": True}),
    chat(bootstrap_host="h", bootstrap_port=1, bootstrap_room=2, store=False, metadata={}, promptCacheKey="k"),
    chat(seed=2**70, user="u", priority=3, request_id="r-1", reasoning_effort="low"),
    chat(messages=[{"role": "developer", "content": [{"type": "text", "text": "hi"}]}]),
    chat(messages=[*MESSAGES, {"role": "assistant", "content": None}]),
    {"messages": MESSAGES} | dict.fromkeys(("model", "n", "stop", "tools", "logit_bias", "stream", "max_tokens")),
]


@pytest.mark.parametrize("body", ACCEPTED, ids=lambda value: str(value)[:60])
async def test_what_real_clients_send_is_accepted(body: dict[str, Any]) -> None:
    def script(request: Any) -> Any:
        return [step for sample in range(request.sampling.n) for step in says("x", sample=sample)]

    response = await rig(script).post(CHAT, body)
    assert response.status_code == 200, response.text


async def test_tools_that_a_template_leaves_out_are_refused_unless_none_is_to_be_called() -> None:
    """Red if tools were dropped in silence: an agent would wait for calls from a model that was told of no tools."""
    r = rig(says("x"), chat_template=ChatTemplate("{% for m in messages %}{{ m.role }}:{{ m.content }}{% endfor %}"))
    refused = await r.chat(tools=[NAMED_TOOL])
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "tools")
    assert "tool_choice" in refused.json()["error"]["message"]
    assert (await r.chat(tools=[NAMED_TOOL], tool_choice="none")).status_code == 200
    assert (await r.chat(tools=[])).status_code == 200


async def test_fields_without_effect_are_named_once_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    r = rig(says("x"))
    for _ in range(2):
        await r.chat(verbosity="low", prediction={"type": "content", "content": "x"})
    assert [record.getMessage() for record in caplog.records] == [
        "request fields without effect fields=prediction,verbosity"
    ]


BODIES: list[tuple[bytes, str, int, str]] = [
    (b"", "application/json", 400, "invalid_request"),
    (b"{", "application/json", 400, "invalid_request"),
    (b"[1]", "application/json", 400, "invalid_request"),
    (b'"x"', "application/json", 400, "invalid_request"),
    (b"null", "application/json", 400, "invalid_request"),
    (b'{"prompt": "\xff"}', "application/json", 400, "invalid_request"),
    (b'{"prompt": "\\ud800"}', "application/json", 400, "invalid_request"),
    (b'{"prompt": "\\ud800\\ud800"}', "application/json", 400, "invalid_request"),
    (b'{"prompt": "\\udc00"}', "application/json", 400, "invalid_request"),
    (b'{"prompt": "hi", "temperature": NaN}', "application/json", 400, "invalid_request"),
    (b'{"prompt": "hi", "temperature": 1e999}', "application/json", 400, "invalid_request"),
    (b'{"a": ' + b"[" * 9000 + b"]" * 9000 + b"}", "application/json", 400, "invalid_request"),
    (b'{"prompt": "hi"}', "text/plain", 400, "unsupported_media_type"),
    (b"prompt=hi", "application/x-www-form-urlencoded", 400, "unsupported_media_type"),
    (b'{"prompt": "hi"}', "application/json; charset=utf-8", 200, ""),
    (b'{"prompt": "hi"}', "application/vnd.api+json", 200, ""),
    (b'\xef\xbb\xbf{"prompt": "hi"}', "application/json", 200, ""),
    (b'\xef\xbb\xbf\xef\xbb\xbf{"prompt": "hi"}', "application/json", 400, "invalid_request"),
    *(('{"prompt": "hi"}'.encode(name), "application/json", 400, "invalid_request") for name in WIDE),
    (b'{"prompt": "hi"}', "application/json; charset=UTF8", 200, ""),
    (b'{"prompt": "hi"}', 'application/json; x=1; Charset = "utf-8"', 200, ""),
    (b'{"prompt": "hi"}', "application/json; charset=iso-8859-1", 400, "unsupported_media_type"),
    (b'{"prompt": "hi"}', "application/json; charset=utf-16", 400, "unsupported_media_type"),
]


@pytest.mark.parametrize(("body", "content_type", "status", "code"), BODIES, ids=lambda value: str(value)[:40])
async def test_malformed_bodies(body: bytes, content_type: str, status: int, code: str) -> None:
    async with rig(says("x")).client() as client:
        response = await client.post(TEXT, content=body, headers={"content-type": content_type})
    assert response.status_code == status, response.text
    if code:
        assert response.json()["error"]["code"] == code


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ('{"prompt": "é"}'.encode("latin-1"), "not UTF-8: byte 0xe9 at position 12"),
        ('{"prompt": "hi"}'.encode("utf-16"), "UTF-16"),
        ('{"prompt": "hi"}'.encode("utf-32-be"), "UTF-32"),
        (b'{"prompt": "hi",}', "line 1 column 16"),
        (b'{"prompt": "\\ud800"}', "surrogate"),
        (b'{"prompt": "hi"', "line 1 column 16"),
    ],
)
async def test_json_that_is_none_is_refused_with_the_reason_and_the_place(body: bytes, reason: str) -> None:
    async with rig(says("x")).client() as client:
        response = await client.post(TEXT, content=body, headers={"content-type": "application/json"})
    assert response.status_code == 400
    assert reason in response.json()["error"]["message"]


async def test_a_body_without_a_declared_type_is_taken_as_json() -> None:
    async with rig(says("x")).client() as client:
        response = await client.post(TEXT, content=b'{"prompt": "hi"}')
    assert response.status_code == 200


async def test_a_body_over_the_limit_is_refused_while_it_is_read() -> None:
    """Red if the gateway read on for ever: the client below never stops sending. It is heard for a while, then told."""
    r = rig(says("x"), max_body_bytes=1000)
    num_read = 0

    async def endless() -> dict[str, Any]:
        nonlocal num_read
        num_read += 1
        assert num_read < 100
        return {"type": "http.request", "body": bytes(2**20), "more_body": True}

    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": TEXT, "headers": [], "query_string": b""}
    await r.app(scope, endless, send)
    assert (sent[0]["status"], num_read) == (413, 1 + 64)
    declared = await r.post(TEXT, text(prompt="x" * 2000))
    assert declared.status_code == 413 and declared.json()["error"]["code"] == "request_too_large"


@pytest.mark.parametrize("path", [CHAT, TEXT, "/tokenize", "/detokenize"])
async def test_an_unknown_model_is_a_404(path: str) -> None:
    body = {"model": "X", "messages": MESSAGES, "prompt": "hi", "tokens": [1]}
    if path == "/tokenize":
        del body["messages"]
    response = await rig().post(path, body)
    assert response.status_code == 404
    error = response.json()["error"]
    assert (error["message"], error["code"], error["param"]) == (
        "The model `X` does not exist. Models of this server: tiny, alias/of-tiny.",
        "model_not_found",
        "model",
    )


async def test_context_overflow_is_worded_as_agents_expect() -> None:
    r = rig(says("x"))
    for body, path in ((chat(messages=[{"role": "user", "content": "a" * MAX_MODEL_LEN}]), CHAT),):
        error = (await r.post(path, body)).json()["error"]
        num_tokens = MAX_MODEL_LEN + len("user:\nassistant:")
        assert error["message"].startswith(
            f"This model's maximum context length is {MAX_MODEL_LEN} tokens. "
            f"However, your prompt contains {num_tokens} input tokens"
        )
        assert (error["code"], error["param"]) == ("context_length_exceeded", "messages")
    exactly_full = await r.post(TEXT, text(prompt="a" * MAX_MODEL_LEN))
    assert exactly_full.status_code == 400
    one_left = await r.post(TEXT, text(prompt="a" * (MAX_MODEL_LEN - 1)))
    assert one_left.status_code == 200 and r.generator.requests[0].sampling.max_tokens == 1


async def test_chat_without_a_template_says_what_to_use() -> None:
    response = await rig(chat_template=None).chat()
    assert response.status_code == 400 and "/v1/completions" in response.json()["error"]["message"]


ENGINE_ERRORS: list[tuple[errors.RelevoError, int, str | None, str | None]] = [
    (errors.Overloaded("full", retry_after_s=2.5), 429, "3", None),
    (errors.NoWorker("none", retry_after_s=0.2), 503, "1", None),
    (errors.WorkerError("failed"), 503, "1", None),
    (errors.WorkerLost("lost"), 503, "1", None),
    (errors.HandoffFailed("failed"), 503, "1", None),
    (errors.StepFailed("failed"), 500, "1", None),
    (errors.ProtocolError("bad"), 502, None, "false"),
    (errors.InvalidRequest("bad", param="x"), 400, None, "false"),
    (errors.ContextLengthExceeded("long"), 400, None, "false"),
]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("error", "status", "retry_after", "should_retry"), ENGINE_ERRORS)
async def test_an_error_before_the_first_token_keeps_its_status(
    stream: bool, error: errors.RelevoError, status: int, retry_after: str | None, should_retry: str | None
) -> None:
    """Red if a stream sent its headers before it knew that the request was admitted."""
    r = rig([error])
    response = await r.chat(stream=stream)
    assert response.status_code == status and response.json()["error"]["code"] == error.code
    assert response.headers.get("retry-after") == retry_after
    assert response.headers.get("x-should-retry") == should_retry
    is_worker_fault = isinstance(error, errors.WorkerError)
    assert [record.outcome for record in r.metrics.records] == (["failed"] if is_worker_fault else [])


async def test_retry_after_is_told_in_milliseconds_too() -> None:
    response = await rig([errors.Overloaded("full", retry_after_s=2.5)]).chat()
    assert response.headers["retry-after-ms"] == "2500"


@pytest.mark.parametrize("failure", [errors.WorkerLost("worker d0 is gone"), ZeroDivisionError("bug")])
async def test_a_failure_inside_a_stream_is_an_error_event_and_no_done(failure: Exception) -> None:
    r = rig([(0, ids("ab"), None), failure])
    response = await r.chat(stream=True)
    payloads = events(response)
    assert response.status_code == 200 and "[DONE]" not in payloads
    expected = failure.code if isinstance(failure, errors.RelevoError) else "internal_error"
    assert payloads[-1]["error"]["code"] == expected and "bug" not in payloads[-1]["error"]["message"]
    assert r.metrics.records[0].outcome == "failed" and r.generator.num_open == 0


@pytest.mark.parametrize("stream", [False, True])
async def test_an_unexpected_exception_is_a_500_that_tells_nothing(stream: bool) -> None:
    response = await rig([ZeroDivisionError("secret")]).chat(stream=stream)
    assert response.status_code == 500 and "secret" not in response.text
    assert response.json()["error"]["code"] == "internal_error"


@pytest.mark.parametrize("end", [FinishReason.ABORT, FinishReason.ERROR, None])
async def test_an_answer_that_the_engine_gave_up_is_never_taken_for_complete(end: FinishReason | None) -> None:
    response = await rig([(0, ids("ab"), None), (0, (), end)]).chat()
    assert response.status_code == 503 and response.json()["error"]["code"] == "worker_failed"


async def test_one_failing_prompt_of_several_ends_all() -> None:
    def script(request: Any) -> Any:
        return says("x") if request.prompt_token_ids == tuple(ids("a")) else [errors.Overloaded("full")]

    r = rig(script)
    response = await r.complete(prompt=["a", "b", "c"])
    assert response.status_code == 429 and r.generator.num_open == 0


def test_every_code_of_the_tree_has_a_status() -> None:
    """Red if an error class with a new code is added and not decided on here."""
    classes, codes = [errors.RelevoError], set()
    while classes:
        found = classes.pop()
        codes.add(found.code)
        classes += found.__subclasses__()
    assert codes <= HTTP_STATUSES.keys()


async def test_a_client_that_leaves_while_it_sends_its_body_is_counted() -> None:
    r: Rig = rig(says("x"))

    async def gone() -> dict[str, Any]:
        return {"type": "http.disconnect"}

    scope = {"type": "http", "method": "POST", "path": TEXT, "headers": [], "query_string": b""}
    await r.app(scope, gone, lambda message: pytest.fail("nothing may be sent"))  # type: ignore[arg-type, return-value]
    assert r.metrics.responses == [(TEXT, "POST", 499)]


async def test_a_lone_surrogate_is_a_bad_request_not_a_crash() -> None:
    async with rig(says("x")).client() as client:
        response: httpx.Response = await client.post(
            CHAT, content=rb'{"messages":[{"role":"user","content":"\udfff"}]}'
        )
    assert response.status_code == 400 and response.json()["error"]["code"] == "invalid_request"


class PlainErrors:
    """An API that words its errors as lines of text."""

    def reply(self, error: errors.RelevoError, request_id: str) -> ErrorReply:
        return ErrorReply(418, {"content-type": "text/plain"}, f"{error.code} {request_id}".encode())

    def stream_event(self, error: errors.RelevoError, request_id: str) -> bytes:
        return f"event: error\ndata: {error.code} {request_id}\n\n".encode()


async def _refuse(call: Call) -> None:
    raise errors.Overloaded("full")


@pytest.mark.parametrize(
    ("method", "path", "said"),
    [
        ("POST", "/v9/plain", "overloaded r1"),  # by its handler
        ("GET", "/v9/plain", "method_not_allowed r1"),  # by the table
        ("POST", "/v9/plain/below", "overloaded r1"),
        ("POST", "/v9/other", '"code":"unknown_path"'),
        ("PUT", "/v1/models", '"code":"method_not_allowed"'),
    ],
)
async def test_an_error_on_a_path_looks_as_its_api_says(method: str, path: str, said: str) -> None:
    """Red if any error before or in a handler had one shape for all paths."""
    own = [Route("POST", "/v9/plain", _refuse, PlainErrors()), Route("POST", "/v9/plain/*", _refuse, PlainErrors())]
    r = rig(routes=RouteTable((*ROUTES, *own), OPENAI_ERRORS))
    async with r.client(**{"x-request-id": "r1"}) as client:
        response = await client.request(method, path)
    assert said in response.text and (response.status_code == 418) is (not said.startswith('"'))
