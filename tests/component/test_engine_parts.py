"""Parts of the adapters to other engines: how a worker is named, what its events mean, what its answers are read as.

Red when an operator's slip gets no sentence, when a block is believed to be cached that is not, or when an engine's
words change their meaning.
"""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from in_process_stack import request_for

from relevo.core.baton import SampledToken, SampleState
from relevo.core.errors import SettingsError
from relevo.core.request import FinishReason, SamplingParams
from relevo.engines.commands import command_of
from relevo.engines.costs import SeenCosts
from relevo.engines.kv_events import CacheBook
from relevo.engines.sglang import SGLangProtocol
from relevo.engines.spec import EngineSpec, parse_engines
from relevo.engines.vllm import VLLMProtocol
from relevo.engines.words import EngineAsk, EngineFailed, Piece
from relevo.policy.worker.prefix_cache import chain

PREFILL = "http://10.0.0.2:8000,role=prefill,engine=vllm"
DECODE = "http://10.0.0.3:8000,role=decode,engine=vllm"


def test_workers_are_named_by_url_role_and_engine() -> None:
    prefill, decode = parse_engines((PREFILL + ",events=tcp://10.0.0.2:5557,lease_s=12", DECODE + ",name=d,model=m"))
    assert (prefill.worker_id, prefill.dialect, prefill.lease_s) == ("prefill-0", "nixl-pull", 12.0)
    assert (decode.worker_id, decode.model, decode.url) == ("d", "m", "http://10.0.0.3:8000")


def test_addresses_of_ipv6_keep_their_brackets() -> None:
    (spec, _) = parse_engines(
        ("http://[fd00::2]:30000/,role=prefill,engine=sglang", "http://[fd00::3]:30000,role=decode,engine=sglang")
    )
    assert spec.bootstrap == "[fd00::2]:8998"
    assert spec.url == "http://[fd00::2]:30000"


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        (("http://a:1",), "role= must be one of prefill, decode, unified"),
        (("http://a:1,role=prefil,engine=vllm",), "role=prefil must be one of"),
        (("http://a:1,role=decode",), "engine= must be one of vllm, sglang"),
        (("http://a:1,role=decode,engine=tgi",), "engine=tgi must be one of vllm, sglang"),
        (("ftp://a,role=decode,engine=vllm",), "no http or https URL"),
        ((PREFILL + ",color=red",), "'color=red' is none of role="),
        ((PREFILL + ",role=decode", DECODE), "role= is there twice"),
        ((PREFILL + ",lease_s=0.5", DECODE), "must be seconds from 3 to 3600"),
        ((PREFILL + ",dialect=sglang-bootstrap", DECODE), "none of vllm's: nixl-pull, nixl-push, mooncake"),
        ((PREFILL,), "every --worker has role=prefill, so none of them decodes"),
        (("http://a:1,role=decode,engine=sglang",), "none of them computes prompts"),
        ((PREFILL, PREFILL), "has the URL of another worker"),
        ((PREFILL + ",name=x", DECODE + ",name=x"), "has the name of another worker"),
        ((PREFILL, DECODE.replace("vllm", "sglang")), "cannot hand KV to each other"),
        ((PREFILL, DECODE, "http://c:1,role=unified,engine=vllm"), "role=unified takes part in no handoff"),
        ((PREFILL, DECODE + ",dialect=mooncake"), "all must hand over alike"),
        (("http://fd00::2:80,role=decode,engine=vllm",), "stands in brackets"),
    ],
)
def test_a_slip_is_told_in_one_sentence(texts: tuple[str, ...], words: str) -> None:
    with pytest.raises(SettingsError, match=re.escape(words)) as refused:
        parse_engines(texts)
    assert "\n" not in refused.value.message


# ---- KV events -------------------------------------------------------------------------------------------------------


def stored(names: list[int], tokens: list[int], parent: int | None = None, **more: Any) -> dict[str, Any]:
    told = {"type": "BlockStored", "block_hashes": names, "parent_block_hash": parent, "token_ids": tokens}
    return told | {"block_size": 4, "medium": "GPU", "lora_id": None, "extra_keys": None} | more


def test_blocks_of_an_engine_get_our_hashes() -> None:
    book, tokens = CacheBook(4), list(range(12))
    first, _ = book.take([stored([1, 2], tokens[:8])])
    second, _ = book.take([stored([3], tokens[8:], parent=2)])
    assert [*first, *second] == chain(tokens, 4, b"")
    _, gone = book.take([{"type": "BlockRemoved", "block_hashes": [3, 99], "medium": "GPU"}])
    assert gone == second
    assert list(book.held) == first
    _, gone = book.take([{"type": "AllBlocksCleared"}])
    assert gone == first
    assert not book.held


def test_salted_blocks_are_found_under_the_same_salt_only() -> None:
    book, tokens, salt = CacheBook(4), [1, 2, 3, 4], b"tenant"
    blocks, _ = book.take([stored([1], tokens, extra_keys=[[["cache_salt", salt.hex()]]])])
    assert blocks == chain(tokens, 4, salt)
    assert blocks != chain(tokens, 4, b"")


@pytest.mark.parametrize(
    "event",
    [
        stored([1], [1, 2, 3, 4], parent=77),  # goes on from what is not known
        stored([1], [1, 2, 3, 4], lora_id=3),
        stored([1], [1, 2, 3, 4], block_size=8),
        stored([1], [1, 2, 3]),
        stored([1], [1, 2, 3, 4], medium="STORAGE"),
        stored([1], [1, 2, 3, 4], extra_keys=[["image-hash"]]),
        stored([1], [1, 2, 3, 4], extra_keys=[[["cache_salt", "00.1"]]]),  # of a cache that is not trusted any more
        ["BlockStored", [1], None, [1, 2, 3, 4], 4],  # as before 0.32
        None,
    ],
)
def test_what_is_not_known_for_sure_is_not_believed(event: Any) -> None:
    book = CacheBook(4)
    assert book.take([event]) == ([], [])
    assert not book.held


# ---- what engines say ------------------------------------------------------------------------------------------------

GREEDY = SamplingParams(max_tokens=9, seed=0, temperature=0.0)


def ask(**sampling: Any) -> EngineAsk:
    values = {"max_tokens": 9, "seed": 0, **sampling}
    return EngineAsk(name="n", model="m", token_ids=(1,), sampling=SamplingParams(**values), max_tokens=9)


def test_vllm_streams_are_read() -> None:
    protocol = VLLMProtocol()
    chunk = {"choices": [{"index": 0, "token_ids": [5, 6], "finish_reason": None}]}
    assert protocol.piece(json.dumps(chunk).encode(), ask(), 0) == Piece((SampledToken(5), SampledToken(6)))
    last = {"choices": [], "usage": {"prompt_tokens_details": {"cached_tokens": 96}}}
    assert protocol.piece(json.dumps(last).encode(), ask(), 2) == Piece(num_cached_tokens=96)
    assert protocol.piece(b"[DONE]", ask(), 2) is None
    content = [{"token_id": 5, "logprob": -1.5, "rank": 2, "top_logprobs": []}]
    content[0]["top_logprobs"] = [
        {"token_id": 5, "logprob": -1.5, "rank": 2},
        {"token_id": 9, "logprob": -0.5, "rank": 1},
    ]
    chunk["choices"][0] |= {"token_ids": [5], "logprobs": {"content": content}, "finish_reason": "stop"}
    piece = protocol.piece(json.dumps(chunk).encode(), ask(num_logprobs=2), 0)
    assert piece == Piece((SampledToken(5, -1.5, ((9, -0.5), (5, -1.5))),), FinishReason.STOP)


@pytest.mark.parametrize("protocol", [VLLMProtocol(), SGLangProtocol()])
@pytest.mark.parametrize("event", [b"", b"{", b"[]", b'{"error": {"message": "no", "code": 400}}'])
def test_nonsense_is_a_failure_of_the_engine(protocol: Any, event: bytes) -> None:
    with pytest.raises(EngineFailed):
        protocol.piece(event, ask(), 0)


def test_sglang_tells_all_output_or_what_is_new() -> None:
    protocol = SGLangProtocol()
    meta = {"completion_tokens": 3, "cached_tokens": 2, "finish_reason": {"type": "length"}}
    told = json.dumps({"output_ids": [4, 5, 6], "meta_info": meta}).encode()
    expected = Piece((SampledToken(5), SampledToken(6)), FinishReason.LENGTH, 2)
    assert protocol.piece(told, ask(), 1) == expected
    told = json.dumps({"output_ids": [5, 6], "meta_info": meta}).encode()
    assert protocol.piece(told, ask(), 1) == expected


def test_a_replay_goes_on_where_the_other_left_off() -> None:
    from relevo.engines.asks import ask_for

    class OfPeer:
        model = "m"
        facts = type("Facts", (), {"max_model_len": 100})

        def salted(self, salt: bytes) -> str:
            return salt.hex()

    made = ask_for(request_for(1, [1, 2, 3], 8), OfPeer(), "x", sample=SampleState(2, [7, 8]))  # type: ignore[arg-type]
    assert made.token_ids == (1, 2, 3, 7, 8)
    assert made.max_tokens == 6
    assert made.seed == 2


def test_costs_are_those_of_work_and_not_of_waiting() -> None:
    costs = SeenCosts()
    costs.prompt_took(100, 0.0, 1.0)  # three that were sent at once, one after the other computed
    costs.prompt_took(100, 0.0, 2.0)
    costs.prompt_took(100, 0.0, 3.0)
    assert costs.step_costs.per_token_s == pytest.approx(0.01)


# ---- how engines are started -----------------------------------------------------------------------------------------


def test_an_engine_that_is_started_has_a_role_a_short_lease_and_a_key() -> None:
    spec = EngineSpec(
        worker_id="prefill-0",
        url="http://127.0.0.1:8101",
        role="prefill",
        engine="vllm",
        dialect="nixl-pull",
        lease_s=12.0,
        api_key="secret",
        events="tcp://127.0.0.1:5557",
        served_name="m",
        block_size=32,
    )
    command = command_of(spec, "/models/m", 4096, ("--dtype", "float32"), side_channel_port=5600)
    words = " ".join(command.argv)
    assert words.startswith("vllm serve /models/m --host 127.0.0.1 --port 8101")
    assert words.endswith("--dtype float32")
    assert '"kv_role": "kv_producer"' in words
    assert '"kv_lease_duration": 12' in words
    assert "secret" not in words
    assert command.environment["VLLM_API_KEY"] == "secret"
    assert command.environment["VLLM_NIXL_SIDE_CHANNEL_PORT"] == "5600"
    assert "secret" not in repr(spec)
