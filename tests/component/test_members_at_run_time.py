"""Workers that join and are removed while requests run, and the orchestrator without an event loop: its real objects,
driven by calls on virtual time."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

from relevo.core.baton import SampledToken
from relevo.core.errors import WorkerLost
from relevo.core.events import StepCounters, TokenOutput, WorkerLoad
from relevo.core.handoff import NO_SITE
from relevo.core.ids import RequestId, WorkerId
from relevo.core.outcome import COMPLETE, Cause, RequestEnd
from relevo.core.request import EngineRequest, FinishReason, SamplingParams
from relevo.engine.fake_runner import fake_layout
from relevo.orchestrator.dispatch import Dispatcher
from relevo.orchestrator.membership import Member, Membership
from relevo.orchestrator.placement import Placement
from relevo.orchestrator.ports import StartedRequest
from relevo.orchestrator.route_notes import RouteNotes
from relevo.policy.admission.admission import Admission, AdmissionLimits
from relevo.policy.handoff.state import HandoffLimits
from relevo.policy.routing.worker_choice import WorkerChooser
from relevo.policy.worker.prefix_cache import prompt_hashes
from relevo.sim.kernel import Kernel
from relevo.wire import messages as wire

LIMITS = HandoffLimits(queue_s=30.0, prefill_s=10.0, transfer_s=5.0, drain_lease_s=2.0, decode_stall_s=20.0)
S = 1_000_000_000


class Silent:
    """No metrics."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *args: None


class CountingKernel(Kernel):
    num_armed = 0

    def call_at(self, at_ns: int, callback: Callable[..., None], *args: Any) -> Any:
        self.num_armed += 1
        return super().call_at(at_ns, callback, *args)


class Link:
    """One incarnation of a worker that lets go of former blocks at once. Otherwise it says what the test says."""

    def __init__(self, world: World, name: str, epoch: int) -> None:
        self.sent: list[wire.ToWorker] = []
        self.is_ended = False
        self._world = world
        self.hello = wire.Hello(
            protocol_version=wire.PROTOCOL_VERSION,
            worker_id=WorkerId(name),
            epoch=epoch,
            pid=1,
            role="unified",
            layout=fake_layout(4),
            model_name="fake",
            vocab_size=256,
            max_model_len=256,
            kv_site=NO_SITE,
            load=WorkerLoad(),
        )

    def send(self, message: wire.ToWorker) -> None:
        if self.is_ended:
            raise WorkerLost("ended")
        self.sent.append(message)
        if isinstance(message, wire.Fence):
            self._answer(wire.Fenced(message.worker_id, message.epoch, message.nonce))

    def close(self) -> None:
        pass

    def say(self, message: wire.ToGateway) -> None:
        self._answer(message)
        self._world.run()

    def _answer(self, message: wire.ToGateway) -> None:
        self._world.kernel.call_after(0, self._world.membership.heard, self.hello.worker_id, message)

    def says_token(self, name: str, token_id: int, finish: FinishReason | None = None) -> None:
        output = TokenOutput(RequestId(name), 0, (SampledToken(token_id),), finish)
        self.say(wire.StepOutputs((output,), WorkerLoad(), StepCounters()))

    def end(self) -> None:
        self.is_ended = True
        self._world.membership.lost(self.hello.worker_id, "its process ended")

    def asked(self, kind: type[Any]) -> list[Any]:
        return [message for message in self.sent if isinstance(message, kind)]


class Client:
    """An OutputSink."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.ends: list[RequestEnd] = []
        self.started: StartedRequest

    def on_output(self, output: TokenOutput) -> None:
        assert not self.ends
        self.tokens += [token.token_id for token in output.tokens]

    def on_end(self, end: RequestEnd) -> None:
        self.ends.append(end)


class World:
    def __init__(self, *names: str) -> None:
        self.kernel = CountingKernel()
        self.membership = Membership([Member(WorkerId(name), "unified", name) for name in names])
        self.placement = Placement(self.membership, WorkerChooser(), 4, Random(0))
        self.dispatcher = Dispatcher(
            membership=self.membership,
            placement=self.placement,
            admission=Admission(AdmissionLimits()),
            limits=LIMITS,
            block_size=4,
            model_name="fake",
            metrics=Silent(),
            clock=self.kernel,
            timers=self.kernel,
            notes=RouteNotes(),
            kill=lambda worker, reason: None,
            hash_prompt=partial(prompt_hashes, block_size=4),
        )

    def run(self) -> None:
        """What is due now."""
        self.kernel.run(until_ns=self.kernel.now_ns())

    def add(self, name: str) -> None:
        self.membership.add(Member(WorkerId(name), "unified", name))

    def join(self, name: str, epoch: int = 1) -> Link:
        link = Link(self, name, epoch)
        assert self.membership.connected(WorkerId(name), link)
        self.run()
        return link

    def ask(self, name: str) -> Client:
        client, rng = Client(), Random(name)
        prompt = tuple(rng.randrange(256) for _ in range(10))
        sampling = SamplingParams(max_tokens=99, seed=0, temperature=0, ignore_eos=True)
        request = EngineRequest(request_id=RequestId(name), prompt_token_ids=prompt, sampling=sampling, arrived_at_ns=1)
        client.started = self.dispatcher.start(request, client)
        return client

    def is_clean(self) -> bool:
        """No request has left anything behind, not even a timer."""
        return not self.dispatcher.num_in_flight and self.placement.is_idle and self.kernel.next_at_ns is None


def test_a_request_is_driven_by_calls_alone() -> None:
    """Red when the orchestrator needs an event loop again, or leaves a timer behind."""
    world = World("u")
    worker = world.join("u")
    client = world.ask("a")
    (submit,) = worker.asked(wire.Submit)
    assert submit.request.request_id == "a"
    worker.says_token("a", 5)
    worker.says_token("a", 6, FinishReason.LENGTH)
    assert (client.tokens, client.ends) == ([5, 6], [COMPLETE])
    assert world.is_clean()


def test_a_stream_of_tokens_arms_no_timer_per_token() -> None:
    world = World("u")
    worker = world.join("u")
    world.ask("a")
    worker.says_token("a", 0)
    armed = world.kernel.num_armed
    for number in range(20):
        world.kernel.run(until_ns=world.kernel.now_ns() + S // 10)
        worker.says_token("a", number)
    assert world.kernel.num_armed - armed == 20, "one call per message of the world, none of the dispatcher"


def test_one_timer_serves_every_deadline_of_a_request() -> None:
    """It waits in line for a worker, then for its first token. Red when one deadline takes the place of another."""
    world = World("u")
    worker = world.join("u")
    client = world.ask("a")
    assert worker.asked(wire.Submit)
    world.kernel.run(until_ns=39 * S)
    assert not worker.asked(wire.Abort)
    world.kernel.run(until_ns=41 * S)  # as long as room and the prompt may take
    assert worker.asked(wire.Abort) and not client.ends
    worker.say(wire.Dropped(RequestId("a")))
    assert client.ends[0].code == "worker_failed"
    assert world.is_clean()


def test_what_the_client_needs_no_more_ends_as_what_it_is() -> None:
    """Red when a stop string is taken for a client that left."""
    for end in (COMPLETE, RequestEnd(cause=Cause.CLIENT_GONE)):
        world = World("u")
        worker = world.join("u")
        client = world.ask("a")
        worker.says_token("a", 5)
        client.started.end(end)
        client.started.end(RequestEnd(cause=Cause.CLIENT_GONE))
        assert client.ends == [end] and worker.asked(wire.Abort)
        worker.say(wire.Dropped(RequestId("a")))
        assert world.is_clean()


def test_a_worker_that_joins_at_run_time_gets_work() -> None:
    """The first of all, too: a cluster may begin empty. Red when only members of the start are routed to."""
    world = World()
    world.add("u")
    waiting = world.ask("a")
    first = world.join("u")
    assert first.asked(wire.Submit) and not waiting.ends
    world.add("v")
    assert world.dispatcher.status().ready, "one that is yet to come keeps no request out"
    second = world.join("v")
    for number in range(4):
        world.ask(f"b{number}")
    assert second.asked(wire.Submit)


def test_a_worker_that_joins_gets_nothing_before_all_others_have_let_go_of_its_former_blocks() -> None:
    world = World("u")
    world.join("u")
    world.add("v")
    late = Link(world, "v", 1)
    world.membership.connected(WorkerId("v"), late)
    member = next(member for member in world.membership.members if member.worker_id == "v")
    assert not member.is_ready, "the answer of u is still under way"
    world.run()
    assert member.is_ready


def test_a_removed_worker_finishes_what_it_has_and_is_forgotten() -> None:
    world = World("u", "v")
    workers = {name: world.join(name) for name in ("u", "v")}
    client = world.ask("a")
    serving = next(name for name in workers if workers[name].asked(wire.Submit))
    world.membership.remove(WorkerId(serving))
    assert workers[serving].asked(wire.Drain)
    for number in range(4):
        world.ask(f"b{number}")
    assert len(workers[serving].asked(wire.Submit)) == 1, "it takes nothing new"
    workers[serving].says_token("a", 7, FinishReason.LENGTH)
    assert (client.tokens, client.ends) == ([7], [COMPLETE])
    workers[serving].end()
    assert serving not in [status.worker_id for status in world.dispatcher.status().workers]
    assert world.dispatcher.status().ready


def test_what_still_runs_on_a_removed_worker_when_it_ends_is_continued_elsewhere() -> None:
    """Red when it counts as a failure of the request, or something of the worker stays behind."""
    world = World("u", "v")
    workers = {name: world.join(name) for name in ("u", "v")}
    client = world.ask("a")
    serving = next(name for name in workers if workers[name].asked(wire.Submit))
    other = workers["v" if serving == "u" else "u"]
    workers[serving].says_token("a", 7)
    world.membership.remove(WorkerId(serving))
    workers[serving].end()
    (submit,) = other.asked(wire.Submit)
    assert submit.samples[0].output_token_ids == [7]
    other.says_token("a", 8, FinishReason.LENGTH)
    assert (client.tokens, client.ends) == ([7, 8], [COMPLETE])
    assert world.is_clean()
    world.add(serving)
    assert world.join(serving, epoch=2).hello.epoch == 2, "its name is free again"


def test_without_another_worker_the_requests_of_a_removed_one_end_at_once() -> None:
    """Red when they wait for a worker that will not return."""
    world = World("u")
    worker = world.join("u")
    client = world.ask("a")
    world.membership.remove(WorkerId("u"))
    worker.end()
    assert client.ends[0].code == "no_worker"
    assert world.is_clean()


def test_a_worker_that_is_removed_before_it_came_keeps_no_other_out() -> None:
    world = World("u", "v")
    worker = world.join("u")
    client = world.ask("a")
    assert not world.dispatcher.status().ready, "v may still write into blocks of an earlier u"
    world.membership.remove(WorkerId("v"))
    assert world.dispatcher.status().ready and worker.asked(wire.Submit) and not client.ends
