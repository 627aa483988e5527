"""Tokenizers may know more tokens than the model has rows: such ids are refused wherever they come in, and alone."""

from __future__ import annotations

import asyncio

import pytest
from in_process_stack import in_process_stack, request_for
from scripted_gateway import VOCAB_SIZE, Rig, rig, says

from relevo.core.errors import InvalidRequest
from relevo.policy.worker.intake import SchedulerConfig, check_ids

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"


def narrow() -> Rig:
    """The tokenizer's last token, <|end|>, has no embedding."""
    return rig(says("x"), vocab_size=VOCAB_SIZE - 1)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        (TEXT, {"prompt": "a <|end|> b"}, "prompt"),
        (TEXT, {"prompt": ["fine", "a <|end|> b"]}, "prompt"),
        (TEXT, {"prompt": [1, VOCAB_SIZE - 1]}, "prompt"),
        (TEXT, {"prompt": [[1], [VOCAB_SIZE - 1]]}, "prompt"),
        (CHAT, {"messages": [{"role": "user", "content": "hello <|end|>"}]}, "messages"),
        (CHAT, {"messages": [{"role": "user", "content": "a"}], "logit_bias": {str(VOCAB_SIZE - 1): 1}}, "logit_bias"),
        (TEXT, {"prompt": "a", "stop_token_ids": [VOCAB_SIZE - 1]}, "stop_token_ids"),
    ],
)
async def test_an_id_that_the_model_has_not_is_one_clients_400(
    path: str, fields: dict, param: str, stream: bool
) -> None:
    """Red when the tokenizer's size is taken for the model's."""
    gateway = narrow()
    response = await gateway.post(path, {"model": "tiny", "stream": stream} | fields)
    error = response.json()["error"]
    assert response.status_code == 400 and error["param"] == param
    assert str(VOCAB_SIZE - 1) in error["message"]
    assert not gateway.generator.requests


async def test_text_is_named_by_the_token_that_is_too_much() -> None:
    response = await narrow().post(TEXT, {"model": "tiny", "prompt": "a <|end|> b"})
    assert "'<|end|>' (id 256)" in response.json()["error"]["message"]


async def test_what_the_tokenizer_knows_can_be_read_and_written_without_the_model() -> None:
    gateway = narrow()
    tokens = (await gateway.post("/tokenize", {"prompt": "<|end|>"})).json()["tokens"]
    assert tokens == [VOCAB_SIZE - 1]
    assert (await gateway.post("/detokenize", {"tokens": [97, *tokens]})).status_code == 200
    assert (await gateway.post("/detokenize", {"tokens": [VOCAB_SIZE]})).status_code == 400


async def test_a_worker_refuses_what_a_gateway_let_through() -> None:
    """The second line: red when an id that no row belongs to reaches a step and costs its companions their answer."""
    async with in_process_stack({"d": "decode", "p": "prefill"}, num_gateways=1) as stack:
        gateway = stack.gateways[0]
        good, bad, negative = request_for(0, [1, 2]), request_for(1, [1, 257]), request_for(2, [-1])
        answers = await asyncio.gather(*map(gateway.tokens, (bad, good, negative)), return_exceptions=True)
        assert isinstance(answers[0], InvalidRequest) and "257" in str(answers[0])
        assert not isinstance(answers[1], BaseException)
        assert isinstance(answers[2], InvalidRequest)


def test_the_bound_is_the_models(minimal_config: SchedulerConfig) -> None:
    assert check_ids([0, 9], minimal_config) is None
    for token_ids in ([10], [0, -1], [3, 2**40]):
        assert check_ids(token_ids, minimal_config) is not None


@pytest.fixture
def minimal_config() -> SchedulerConfig:
    bounds = dict.fromkeys(("epoch", "first_block_id", "max_prefill_tokens"), 0)
    sizes = dict.fromkeys(("num_blocks", "block_size", "max_batched_tokens", "max_running", "max_model_len"), 8)
    return SchedulerConfig(worker_id="w", vocab_size=10, **bounds, **sizes)
