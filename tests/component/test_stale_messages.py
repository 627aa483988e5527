"""What a gateway may say that a worker cannot do: it ends one request, with a reason, and nothing of another gateway's.

A gateway that is stale, or another version, or broken; the ports of workers are closed to strangers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from in_process_stack import BLOCK_SIZE, Worker, make_worker, request_for

from relevo.core.baton import Baton, SampleState
from relevo.core.decisions import Decision, Fact
from relevo.core.handoff import KVPath, Link
from relevo.core.ids import PeerId, RequestId, WorkerId
from relevo.core.kv import Reservation
from relevo.core.request import EngineRequest
from relevo.engine.fake_model import FAKE_MODEL, FakeModel
from relevo.engine.fake_runner import fake_layout
from relevo.kv.arena import Arena
from relevo.kv.transport_set import TransportSet
from relevo.kv.transports.fake import FakeHub
from relevo.kv.transports.shm import ShmTransport
from relevo.wire import messages as wire

NUM_BLOCKS = 32
PROMPT = list(range(4 * BLOCK_SIZE + 1))
RUNS, WAITS, BAD = (
    request_for(0, PROMPT),
    request_for(1, PROMPT[1:]),
    request_for(2, PROMPT[2:]),
)  # theirs, theirs, mine
MEMORY = "shm"
HUGE = 2**62


class World:
    """A worker, on which a request of another gateway runs and one has room; and two gateways."""

    def __init__(self) -> None:
        arena = Arena.create(fake_layout(BLOCK_SIZE), NUM_BLOCKS, shared=False)
        transports = TransportSet([ShmTransport(arena), FakeHub().endpoint("w", arena)], arena.identity, "here")
        self.worker: Worker = make_worker("w", "unified", arena, 0, NUM_BLOCKS, transports)
        self.told: list[list[wire.ToGateway]] = [[], []]
        self.other, self.mine = (self.worker.links.connect(told.append) for told in self.told)
        self.decided: list[tuple[Decision, str]] = []
        self.worker.loop.decide = self._note
        self.say(self.other, wire.Reserve(WAITS), wire.Submit(RUNS))
        self.turn()
        self.path = KVPath(MEMORY, transports[MEMORY].address(), Link.MEMORY)

    def _note(self, decision: Decision, subject: str = "", **facts: Fact) -> None:
        self.decided.append((decision, subject))

    def say(self, peer: PeerId, *messages: wire.ToWorker) -> None:
        for message in messages:
            self.worker.links.deliver(peer, message)

    def turn(self) -> bool:
        return self.worker.loop.turn(0.0)

    def room(self, request: EngineRequest) -> Reservation:
        """Somewhere else, as far as the worker knows."""
        num_blocks = -(-len(request.prompt_token_ids) // BLOCK_SIZE)
        blocks = tuple(range(NUM_BLOCKS - num_blocks, NUM_BLOCKS))
        return Reservation(
            request_id=request.request_id,
            worker_id=WorkerId("d"),
            epoch=1,
            block_size=BLOCK_SIZE,
            block_ids=blocks,
            generations=(0,) * num_blocks,
            num_hit_tokens=0,
        )

    def prefill(self, path: KVPath | None = None, **room: object) -> wire.Prefill:
        return wire.Prefill(BAD, replace(self.room(BAD), **room), path or self.path)  # type: ignore[arg-type]

    def tokens(self, name: str) -> list[int]:
        outputs = [
            each for message in self.told[0] if isinstance(message, wire.StepOutputs) for each in message.outputs
        ]
        return [token.token_id for output in outputs if output.request_id == name for token in output.tokens]


def copying(world: World) -> KVPath:
    return replace(world.path, link=Link.BOX)


def baton(name: str, *samples: SampleState) -> wire.StartDecode:
    return wire.StartDecode(Baton(request_id=RequestId(name), samples=samples, num_sealed_tokens=HUGE))


def submit(*samples: SampleState, **sampling: int) -> Callable[[World], wire.ToWorker]:
    return lambda world: wire.Submit(replace(BAD, sampling=replace(BAD.sampling, **sampling)), samples)  # type: ignore[arg-type]


REFUSED: dict[str, Callable[[World], wire.ToWorker]] = {
    "a name that runs": lambda world: wire.Submit(replace(BAD, request_id=RUNS.request_id)),
    "a name that has room": lambda world: wire.Reserve(replace(BAD, request_id=WAITS.request_id)),
    "a prompt for the room of another": lambda world: world.prefill(request_id=WAITS.request_id),
    "a prompt for half a room": lambda world: world.prefill(generations=()),
    "hits beyond the prompt": lambda world: world.prefill(num_hit_tokens=HUGE),
    "a block as large as memory": lambda world: world.prefill(copying(world), block_size=HUGE),
    "blocks without tokens": lambda world: world.prefill(copying(world), block_size=0),
    "blocks beyond the arena": lambda world: world.prefill(block_ids=(HUGE,) * 4),
    "blocks one beyond the arena": lambda world: world.prefill(block_ids=tuple(range(NUM_BLOCKS - 3, NUM_BLOCKS + 1))),
    "blocks before the first": lambda world: world.prefill(copying(world), block_ids=(-1, 0, 1, 2)),
    "generations below none": lambda world: world.prefill(generations=(-1,) * 4),
    "the generation of closed blocks": lambda world: world.prefill(generations=(2**64 - 1,) * 4),
    "fewer hits than none": lambda world: world.prefill(copying(world), num_hit_tokens=-BLOCK_SIZE),
    "no such transport": lambda world: world.prefill(replace(world.path, transport="pigeons")),
    "memory that is not shared": lambda world: world.prefill(replace(world.path, transport="fake")),
    "to decode in another's room": lambda world: baton(WAITS.request_id, SampleState(0, [1])),
    "to compute in another's room": lambda world: wire.ComputeReserved(WAITS.request_id),
    "to decode in no room": lambda world: baton("x", SampleState(0, [1])),
    "to compute in no room": lambda world: wire.ComputeReserved(RequestId("x")),
    "more continuations than memory": submit(n=HUGE),
    "a continuation twice": submit(SampleState(0, [1]), SampleState(0, [2]), n=2),
    "a continuation too many": submit(SampleState(1, [1])),
    "more tokens than fit": submit(SampleState(0, [1] * 200)),
}
FAILED: dict[str, Callable[[World], wire.ToWorker]] = {
    "blocks that are not open": lambda world: world.prefill(),
    "an address of no worker": lambda world: world.prefill(replace(copying(world), address="nowhere")),
}
UNHEARD: dict[str, Callable[[World], wire.ToWorker]] = {
    "another's end": lambda world: wire.Abort(RUNS.request_id),
    "another's end under a writer": lambda world: wire.Abort(WAITS.request_id, writer_active=True),
    "another's seal": lambda world: wire.SealBlocks(WAITS.request_id, HUGE),
    "a seal of nothing": lambda world: wire.SealBlocks(RequestId("x"), -HUGE),
    "a release of nothing": lambda world: wire.Release(RequestId("x")),
    "a fence far ahead": lambda world: wire.Fence(WorkerId("x"), HUGE, HUGE),
}


@pytest.mark.parametrize("name", [*REFUSED, *FAILED, *UNHEARD])
def test_it_ends_one_request_and_another_gateways_go_on(name: str) -> None:
    """Red when the worker ends with it, when it waits for ever, or when a gateway reaches another one's requests."""
    world = World()
    said = {**REFUSED, **FAILED, **UNHEARD}[name](world)
    world.decided.clear()
    world.say(world.mine, said)
    world.turn()
    accepted = [subject for decision, subject in world.decided if decision in (Decision.ACCEPT, Decision.TAKE_OVER)]
    assert accepted == ([BAD.request_id] if name in FAILED else [])
    while world.turn():
        pass
    ends = [type(message) for message in world.told[1] if isinstance(message, wire.Refused | wire.RequestFailed)]
    assert ends == ([wire.Refused] if name in REFUSED else [wire.RequestFailed] if name in FAILED else [])
    assert list(world.worker.scheduler.requests) == [WAITS.request_id]
    world.say(world.other, wire.ComputeReserved(WAITS.request_id))
    while world.turn():
        pass
    for request in (RUNS, WAITS):
        wanted = FakeModel(vocab_size=FAKE_MODEL.vocab_size).reference_tokens(
            request.prompt_token_ids, request.sampling
        )
        assert world.tokens(request.request_id) == wanted
    assert world.worker.is_clean


@pytest.mark.parametrize("samples", [(SampleState(0, [1] * 200),), (SampleState(0, [1]), SampleState(0, [1])), ()])
def test_a_baton_that_cannot_go_on_gives_its_room_back(samples: tuple[SampleState, ...]) -> None:
    """Red when it waits at the head of the line for room that the pool does not have."""
    world = World()
    world.say(world.mine, wire.Reserve(BAD))
    world.turn()
    world.say(world.mine, baton(BAD.request_id, *samples))
    while world.turn():
        pass
    assert [type(each) for each in world.told[1] if isinstance(each, wire.Refused)] == [wire.Refused]
    assert list(world.worker.scheduler.requests) == [WAITS.request_id]
