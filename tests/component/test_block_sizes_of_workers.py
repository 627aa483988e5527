"""Workers with blocks of different sizes: what is cached is counted in each one's own, settings say which has which.

Red when a prefix is looked for by hashes of another worker's blocks, so that it is never found or taken for longer than
it is, or when a box that joins is silently given the head's blocks.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from by_hand import Link, World

from relevo.build.cluster import cluster_facts
from relevo.build.configs import WorkerConfig
from relevo.build.join import _with_equal as with_equal
from relevo.build.serve import plan_serving
from relevo.core.cluster import NodeFacts
from relevo.core.errors import SettingsError
from relevo.core.ids import RequestId, WorkerRef
from relevo.core.outcome import COMPLETE
from relevo.orchestrator.in_flight import InFlightRequest
from relevo.policy.routing.charges import ChargeLedger
from relevo.policy.routing.gossip import ChangeLog, PeerState
from relevo.policy.routing.prefix_index import PrefixIndex
from relevo.policy.routing.worker_choice import WorkerChooser
from relevo.settings import Settings
from relevo.wire import messages as wire


def asked(world: World, name: str) -> InFlightRequest:
    started = world.ask(name).started
    assert isinstance(started, InFlightRequest)
    return started


def ref(link: Link) -> WorkerRef:
    return WorkerRef(link.hello.worker_id, link.hello.epoch)


def test_a_prefix_is_found_in_the_blocks_of_each_worker() -> None:
    """A prompt of ten tokens: two blocks of four may be hits, or three of three."""
    world = World("a", "b")
    a, b = world.join("a"), world.join("b", block_size=3)
    first = asked(world, "r")
    of_four, of_three = (tuple(first.prompt_hashes.of(size)) for size in (4, 3))
    assert (len(of_four), len(of_three)) == (2, 3)
    first.end(COMPLETE)
    for link, blocks in ((a, of_four[:1]), (b, of_three)):
        link.say(wire.Dropped(RequestId("r")))
        link.say(wire.CacheSnapshot(0, blocks))
    again = asked(world, "r")
    assert world.placement._ask(again).hit_tokens == {ref(a): 4, ref(b): 9}
    assert world.placement.num_cached_tokens(again) == 9


def test_hashes_of_other_blocks_are_no_hits() -> None:
    """Another gateway tells all hashes that a request promises, and where: of workers of every block size at once."""
    world = World("a", "b")
    a, b = world.join("a"), world.join("b", block_size=3)
    first = asked(world, "r")
    index, ledger = PrefixIndex(), ChargeLedger()
    promised = tuple(first.prompt_hashes.of(4)), tuple(first.prompt_hashes.of(3))
    index.expect(RequestId("r"), "prefill", ref(a), promised[0])
    index.expect(RequestId("r"), "decode", ref(b), promised[1])
    log = ChangeLog(ledger, index)
    log.chosen(RequestId("r"), "decode", None)
    told = log.batch()
    assert told is not None and set(told.standings[0].hashes or ()) == {*promised[0], *promised[1]}
    peer = PeerState(world.placement._ledger, world.placement._index, WorkerChooser())
    first.end(COMPLETE)
    for link in (a, b):
        link.say(wire.Dropped(RequestId("r")))
    assert not peer.take("other", told), "the first batch follows a snapshot"
    assert peer.take("other", replace(told, is_snapshot=True))
    hits = world.placement._ask(first).hit_tokens
    assert hits == {ref(a): 8, ref(b): 9}


def plan(**asked: object) -> list[WorkerConfig]:
    given = {"topology": "1p1d", "kv_transport": ("tcp",), "num_kv_blocks": 64, "share_cores": True}
    return list(plan_serving(Settings(model="fake", **(given | asked))).workers)  # type: ignore[arg-type]


def test_workers_that_decode_have_their_own_block_size() -> None:
    workers = plan(topology="2p1d", decode_block_size=32)
    assert [(each.role, each.block_size) for each in workers] == [("prefill", 16), ("prefill", 16), ("decode", 32)]
    assert [each.block_size for each in plan(block_size=8, decode_block_size=8, kv_transport=("shm",))] == [8, 8]
    assert {each.max_model_len for each in plan(decode_block_size=4)} == {64 * 4}, "what the smaller pool holds"


def test_memory_is_counted_in_the_blocks_of_each_worker() -> None:
    (model,) = plan_serving(
        Settings(
            model="fake",
            topology="1p1d",
            kv_transport=("tcp",),
            kv_cache_memory_bytes=2**20,
            decode_block_size=32,
            share_cores=True,
        )
    ).models
    prefill, decode = model.workers
    assert prefill.num_blocks == 2 * decode.num_blocks
    assert model.kv_bytes == 2 * 2**20
    assert sum("blocks of 16 tokens" in note or "blocks of 32 tokens" in note for note in model.notes) == 2


@pytest.fixture
def facts(monkeypatch: pytest.MonkeyPatch) -> object:
    monkeypatch.setattr("relevo.build.cluster.tokenizer_hash", lambda settings: "tokenizer")
    (model,) = plan_serving(Settings(model="fake", topology="unified", num_kv_blocks=64, block_size=32)).models
    node = NodeFacts(
        version="1", protocol_version=1, model_name="m", model_hash="h", tokenizer_hash="t", max_model_len=64
    )
    return cluster_facts(model, node)


@pytest.mark.parametrize(("given", "size"), [({}, 32), ({"block_size": 16}, 16), ({"block_size": 32}, 32)])
def test_a_box_that_joins_has_the_heads_block_size_or_its_own(facts: object, given: dict[str, int], size: int) -> None:
    assert with_equal(Settings(topology="1d", **given), facts, None).block_size == size  # type: ignore[arg-type]


def test_a_box_of_other_engines_is_told_that_it_has_the_heads(facts: object) -> None:
    of_vllm = replace(facts, engine="vllm")  # type: ignore[type-var]
    with pytest.raises(SettingsError, match="blocks of vllm have 32 tokens on all"):
        with_equal(Settings(topology="1d", block_size=16), of_vllm, None)  # type: ignore[arg-type]
