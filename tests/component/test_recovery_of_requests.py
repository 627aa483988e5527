"""What becomes of a request when workers go, come back or fail it: the dispatcher on virtual time, workers by hand."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest
from awaited_outputs import generate
from virtual_time import VirtualLoop, run_virtually

from relevo.build.event_loop import LoopTimers
from relevo.core import errors
from relevo.core.baton import SampledToken
from relevo.core.events import StepCounters, TokenOutput, WorkerLoad
from relevo.core.handoff import KVEndpoint, KVSite, Reach
from relevo.core.ids import RequestId, WorkerId
from relevo.core.request import EngineRequest, FinishReason, SamplingParams, ServiceTerms
from relevo.engine.fake_runner import fake_layout
from relevo.orchestrator.connections import Connections
from relevo.orchestrator.dispatch import Dispatcher
from relevo.orchestrator.member import Member
from relevo.orchestrator.membership import Membership
from relevo.orchestrator.placement import Placement
from relevo.policy.admission.admission import Admission, AdmissionLimits
from relevo.policy.handoff.state import HandoffLimits
from relevo.policy.routing.worker_choice import WorkerChooser
from relevo.policy.worker.prefix_cache import prompt_hashes
from relevo.wire import messages as wire

LIMITS = HandoffLimits(queue_s=30.0, prefill_s=10.0, transfer_s=5.0, drain_lease_s=2.0, decode_stall_s=20.0)
R = RequestId("r")


class Silent:
    """No metrics."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *args: None


class ManualWorker:
    """One incarnation, as the connection that the gateway has to it. It says what the test says, and fences at once."""

    def __init__(self, hello: wire.Hello) -> None:
        self.hello = hello
        self.heard: list[wire.ToWorker] = []
        self.is_broken = False  # and the gateway has not read so far
        self._incoming: asyncio.Queue[wire.ToGateway | None] = asyncio.Queue()

    def send(self, message: wire.ToWorker) -> None:
        if self.is_broken:
            raise errors.WorkerLost("broken")
        self.heard.append(message)
        if isinstance(message, wire.Fence):
            self.say(wire.Fenced(message.worker_id, message.epoch, message.nonce))
        elif isinstance(message, wire.Ping):
            self.say(wire.Pong(message.nonce))

    async def receive(self) -> wire.ToGateway:
        message = await self._incoming.get()
        if message is None:
            raise errors.WorkerLost("closed")
        return message

    def close(self) -> None:
        pass

    def say(self, message: wire.ToGateway) -> None:
        self._incoming.put_nowait(message)

    def die(self) -> None:
        self._incoming.put_nowait(None)

    def leave(self) -> None:
        """As when it is drained and its time for that is over."""
        self.say(wire.Leaving())
        self.die()

    def says_token(self, token_id: int, finish: FinishReason | None = None) -> None:
        output = TokenOutput(R, 0, (SampledToken(token_id),), finish)
        self.say(wire.StepOutputs((output,), WorkerLoad(), StepCounters()))

    def asked(self, kind: type[Any]) -> list[Any]:
        return [message for message in self.heard if isinstance(message, kind)]


@dataclass
class World:
    loop: VirtualLoop
    roles: dict[str, str]
    workers: dict[str, ManualWorker] = field(default_factory=dict)
    fenced: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._joining: dict[str, ManualWorker] = {}
        self._epochs = dict.fromkeys(self.roles, 0)
        members = [Member(WorkerId(name), role, name) for name, role in self.roles.items()]
        self.membership = Membership(members)
        self.connections = Connections(self.membership, self._connect)
        self.placement = Placement(self.membership, WorkerChooser(), 4, Random(0))
        self.dispatcher = Dispatcher(
            membership=self.membership,
            placement=self.placement,
            admission=Admission(AdmissionLimits()),
            limits=LIMITS,
            batch_limits=LIMITS.for_batch(100.0),
            model_name="fake",
            metrics=Silent(),
            clock=self.loop,
            timers=LoopTimers(self.loop),
            hash_prompt=prompt_hashes,
            kill=lambda worker, reason: self.fenced.append(worker.worker_id),
        )

    async def _connect(self, address: str) -> ManualWorker:
        if address not in self._joining:
            raise ConnectionRefusedError
        return self._joining.pop(address)

    async def start(self, *names: str) -> None:
        """New incarnations, in rotation when it returns."""
        for name in names:
            self.come(name)
        await until(lambda: all(self.is_ready(name) for name in names))

    def come(self, name: str) -> ManualWorker:
        self._epochs[name] += 1
        worker = self._joining[name] = self.workers[name] = ManualWorker(
            wire.Hello(
                protocol_version=wire.PROTOCOL_VERSION,
                worker_id=WorkerId(name),
                epoch=self._epochs[name],
                pid=1,
                role=self.roles[name],
                layout=fake_layout(4),
                model_name="fake",
                vocab_size=256,
                max_model_len=256,
                kv_site=KVSite(box_id="box", arena_id="one", endpoints=(KVEndpoint("shm", name, Reach.ARENA),)),
                load=WorkerLoad(),
            )
        )
        return worker

    def is_ready(self, name: str) -> bool:
        return any(member.is_ready for member in self.membership.members if member.worker_id == name)

    def worker_asked(self, kind: type[Any]) -> ManualWorker | None:
        """Whoever of those that are there now was asked for it."""
        return next((worker for worker in self.workers.values() if worker.asked(kind)), None)

    def ask(self, *, is_batch: bool = False) -> asyncio.Task[list[int]]:
        return asyncio.create_task(self._tokens(ServiceTerms(is_batch=is_batch)))

    async def _tokens(self, terms: ServiceTerms) -> list[int]:
        sampling = SamplingParams(max_tokens=99, seed=0, temperature=0, ignore_eos=True)
        request = EngineRequest(request_id=R, prompt_token_ids=tuple(range(10)), sampling=sampling, terms=terms)
        return [token.token_id async for output in generate(self.dispatcher, request) for token in output.tokens]


@asynccontextmanager
async def world_of(loop: VirtualLoop, roles: dict[str, str]) -> AsyncIterator[World]:
    world = World(loop, roles)
    running = asyncio.create_task(world.connections.run())
    try:
        yield world
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def until(condition: Callable[[], object]) -> None:
    while not condition():  # noqa: ASYNC110  # any task may bring it about
        await asyncio.sleep(0.05)


def virtually(story: Callable[[VirtualLoop], Coroutine[Any, Any, None]]) -> None:
    loop = VirtualLoop()

    async def bounded() -> None:
        async with asyncio.timeout(200.0):  # of virtual time
            await story(loop)

    run_virtually(loop, bounded())


def test_who_waited_for_a_worker_to_return_keeps_its_deadlines() -> None:
    """The new incarnation is silent about it. Red when the timer that bounds that wait is taken for the handoff's."""

    async def story(loop: VirtualLoop) -> None:
        async with world_of(loop, {"u": "unified"}) as world:
            await world.start("u")
            answer = world.ask()
            await until(lambda: world.worker_asked(wire.Submit))
            world.workers["u"].says_token(1)
            await asyncio.sleep(1.0)
            world.workers["u"].die()
            await asyncio.sleep(1.0)
            await world.start("u")
            await until(lambda: world.worker_asked(wire.Submit))
            world.workers["u"].says_token(2)
            stalled_at_s = loop.time()
            await until(lambda: world.workers["u"].asked(wire.Abort))
            assert loop.time() - stalled_at_s < 2 * 20.0
            answer.cancel()

    virtually(story)


def test_a_request_that_every_worker_failed_ends_at_once() -> None:
    """Nobody is away who could come back. Red when it waits for a worker to become ready though all are."""

    async def story(loop: VirtualLoop) -> None:
        async with world_of(loop, {"u": "unified"}) as world:
            await world.start("u")
            answer = world.ask()
            await until(lambda: world.worker_asked(wire.Submit))
            failed_at_s = loop.time()
            world.workers["u"].say(wire.RequestFailed(R, "step_failed", "the engine failed in a step: no numbers"))
            with pytest.raises(errors.StepFailed, match="no numbers"):
                await answer
            assert loop.time() - failed_at_s < 1.0
            assert world.dispatcher.num_in_flight == 0
            assert world.placement.is_idle

    virtually(story)


def test_a_request_that_a_worker_failed_waits_for_one_that_is_on_its_way_back() -> None:
    async def story(loop: VirtualLoop) -> None:
        async with world_of(loop, {"u": "unified", "v": "unified"}) as world:
            await world.start("u", "v")
            answer = world.ask()
            await until(lambda: world.worker_asked(wire.Submit))
            first = world.worker_asked(wire.Submit)
            assert first is not None
            other = "v" if first.hello.worker_id == "u" else "u"
            world.workers[other].die()
            await until(lambda: not world.is_ready(other))
            first.say(wire.RequestFailed(R, "step_failed", "no numbers"))
            await asyncio.sleep(5.0)
            assert not answer.done()
            first.die()
            await world.start(other)
            await until(lambda: world.workers[other].asked(wire.Submit))
            world.workers[other].says_token(3, FinishReason.LENGTH)
            assert await answer == [3]

    virtually(story)


def test_a_request_for_a_worker_whose_end_was_not_read_yet_waits_for_its_return() -> None:
    """Red when that worker counts as ready: then nobody seems to be away, and the request fails at once."""

    async def story(loop: VirtualLoop) -> None:
        async with world_of(loop, {"u": "unified"}) as world:
            await world.start("u")
            world.workers["u"].is_broken = True
            answer = world.ask()
            await asyncio.sleep(0.5)
            assert not answer.done()
            world.workers["u"].die()
            await until(lambda: not world.is_ready("u"))
            await world.start("u")
            await until(lambda: world.workers["u"].asked(wire.Submit))
            world.workers["u"].says_token(3, FinishReason.LENGTH)
            assert await answer == [3]

    virtually(story)


def test_a_long_stream_outlives_any_number_of_drains() -> None:
    """Every worker is replaced in turn, twice. Red when a move by a drain counts as a failure of the request."""

    async def story(loop: VirtualLoop) -> None:
        async with world_of(loop, {"u": "unified", "v": "unified"}) as world:
            await world.start("u", "v")
            answer = world.ask()
            for move in range(5):
                await until(lambda: world.worker_asked(wire.Submit))
                serving = world.worker_asked(wire.Submit)
                assert serving is not None
                serving.says_token(move)
                await asyncio.sleep(1.0)
                serving.leave()
                await world.start(serving.hello.worker_id)
            await until(lambda: world.worker_asked(wire.Submit))
            serving = world.worker_asked(wire.Submit)
            assert serving is not None
            serving.says_token(9, FinishReason.LENGTH)
            assert await answer == [0, 1, 2, 3, 4, 9]

    virtually(story)


def test_a_batch_request_that_gives_way_to_others_is_not_taken_from_its_worker() -> None:
    """Red when the patience with a stream that others wait for is all that a batch request gets."""

    async def story(loop: VirtualLoop) -> None:
        async with world_of(loop, {"u": "unified"}) as world:
            await world.start("u")
            answer = world.ask(is_batch=True)
            await until(lambda: world.worker_asked(wire.Submit))
            await asyncio.sleep(50.0)
            world.workers["u"].says_token(1)
            await asyncio.sleep(50.0)
            assert not world.workers["u"].asked(wire.Abort)
            world.workers["u"].says_token(2, FinishReason.LENGTH)
            assert await answer == [1, 2]

    virtually(story)


def test_a_worker_that_returns_does_not_wait_for_one_that_is_gone() -> None:
    """Who is gone writes into nobody's blocks. Red when a worker that cannot start keeps the other one out, too."""

    async def story(loop: VirtualLoop) -> None:
        async with world_of(loop, {"u": "unified", "v": "unified"}) as world:
            await world.start("u", "v")
            world.workers["u"].die()
            world.workers["v"].die()
            await until(lambda: not world.is_ready("u") and not world.is_ready("v"))
            await world.start("u")
            assert not world.is_ready("v")
            await world.start("v")

    virtually(story)
