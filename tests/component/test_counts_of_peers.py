"""Counts that a peer says and that cannot be: refused where they arrive, in a sentence, and nothing else ends with it.

Red when a gateway counts in blocks of no tokens, sends prompts to a room that is none, or starts what no head can have.
"""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest
from by_hand import Client, Link, World

from relevo.build.join import _with_equal as with_equal
from relevo.core.cluster import ClusterFacts, NodeFacts
from relevo.core.errors import SettingsError
from relevo.core.ids import RequestId, WorkerId
from relevo.core.kv import MAX_BLOCK_SIZE, KVGroup, KVLayout, Reservation
from relevo.settings import Settings
from relevo.wire import messages as wire

HUGE = 2**62
LAYOUT = KVLayout("m", "float16", 16, (KVGroup.full([0], 1, 8),))
ROOM = Reservation(
    request_id=RequestId("r"),
    worker_id=WorkerId("d"),
    epoch=1,
    block_size=4,
    block_ids=(7, 8, 9),
    generations=(0, 0, 0),
    num_hit_tokens=0,
)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"layout": replace(LAYOUT, block_size=0)}, "KV blocks of 0 tokens are not possible; use 1 to 4096"),
        ({"layout": replace(LAYOUT, block_size=HUGE)}, f"KV blocks of {HUGE} tokens"),
        ({"layout": replace(LAYOUT, dtype="float99")}, "dtype 'float99' is not known; use one of float32"),
        ({"layout": replace(LAYOUT, groups=())}, "without a group of layers"),
        ({"max_model_len": 0}, "it has 0 tokens of context, at least 1 are possible"),
        ({"num_ranks": -1}, "it has -1 ranks"),
        ({"vocab_size": -1}, "-1 tokens in its vocabulary"),
    ],
)
def test_a_worker_that_cannot_be_is_not_let_in(changes: dict[str, object], words: str) -> None:
    world = World("a", "b")
    world.join("a")
    link = Link(world, "b", 1)
    link.hello = msgspec.structs.replace(link.hello, **changes)
    assert not world.membership.connected(WorkerId("b"), link)
    (said,) = (each.why_not_ready for each in world.membership.members if each.worker_id == "b")
    assert said.startswith("b says what cannot be: ") and words in said
    assert world.ask("r").started is not None, "the others serve"


@pytest.mark.parametrize("size", [0, -1, MAX_BLOCK_SIZE + 1, HUGE])
def test_layouts_with_such_blocks_fit_nobodys(size: int) -> None:
    """As a sender says to a KV port, and a node to its head."""
    said = LAYOUT.mismatch(replace(LAYOUT, block_size=size))
    assert said == f"KV blocks of {size} tokens are not possible; use 1 to {MAX_BLOCK_SIZE}"
    assert LAYOUT.mismatch(replace(LAYOUT, block_size=MAX_BLOCK_SIZE)) is None


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"block_size": 0}, "blocks of 0 tokens, and 1 to 4096"),
        ({"block_size": HUGE}, f"blocks of {HUGE} tokens"),
        ({"generations": (0,)}, "3 blocks and 1 generations"),
        ({"block_ids": (7, 8, HUGE)}, f"blocks 7 to {HUGE}"),
        ({"block_ids": (-1, 8, 9)}, "blocks -1 to 9"),
        ({"generations": (0, 0, 2**64 - 1)}, f"generations 0 to {2**64 - 1}"),
        ({"num_hit_tokens": -4}, "0 tokens of it were found, of -4"),
        ({"num_found_tokens": 4}, "4 tokens of it were found, of 0"),
    ],
)
def test_a_room_that_cannot_be_is_given_back_and_another_is_asked_for(changes: dict[str, object], words: str) -> None:
    assert ROOM.fault is None
    room = replace(ROOM, **changes)  # type: ignore[arg-type]
    assert room.fault is not None and words in room.fault
    world, client = World("p", "d", "e", roles={"p": "prefill", "d": "decode", "e": "decode"}), Client()
    links = {name: world.join(name) for name in ("p", "d", "e")}
    world.ask("r", client)
    asked = next(link for name, link in links.items() if name != "p" and link.asked(wire.Reserve))
    asked.say(wire.Reserved(replace(room, worker_id=asked.hello.worker_id)))
    assert asked.asked(wire.Abort) == [wire.Abort(RequestId("r"))]
    assert not links["p"].asked(wire.Prefill), "it would be sent to that room"
    other = next(link for name, link in links.items() if name != "p" and link is not asked)
    other.says_token("r", 5)
    assert other.asked(wire.Reserve) or other.asked(wire.Submit), "the request goes on elsewhere"
    assert not client.ends


def facts_of(block_size: int, max_model_len: int) -> ClusterFacts:
    node = NodeFacts(
        version="1",
        protocol_version=1,
        model_name="m",
        model_hash="h",
        tokenizer_hash="t",
        max_model_len=max_model_len,
    )
    return ClusterFacts(
        node=node,
        model="m",
        revision=None,
        dtype="auto",
        quantization=None,
        activation_dtype="auto",
        kv_cache_dtype="auto",
        block_size=block_size,
    )


@pytest.mark.parametrize(("block_size", "max_model_len"), [(0, 64), (HUGE, 64), (-16, 64), (16, 0)])
def test_what_no_head_can_have_is_not_started(block_size: int, max_model_len: int) -> None:
    with pytest.raises(SettingsError, match=f"blocks of {block_size} tokens and a context of {max_model_len}, which"):
        with_equal(Settings(topology="1d"), facts_of(block_size, max_model_len), None)
    assert with_equal(Settings(topology="1d"), facts_of(32, 64), None).block_size == 32
