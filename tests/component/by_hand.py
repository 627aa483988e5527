"""The orchestrator without an event loop: its real objects, driven by calls on virtual time; workers say what a test
says."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from relevo.core.baton import SampledToken
from relevo.core.errors import WorkerLost
from relevo.core.events import StepCounters, TokenOutput, WorkerLoad
from relevo.core.handoff import KVEndpoint, KVSite, Reach
from relevo.core.ids import RequestId, WorkerId
from relevo.core.outcome import RequestEnd
from relevo.core.request import EngineRequest, FinishReason, SamplingParams
from relevo.engine.fake_runner import fake_layout
from relevo.orchestrator.dispatch import Dispatcher
from relevo.orchestrator.member import Member
from relevo.orchestrator.membership import Membership
from relevo.orchestrator.placement import Placement
from relevo.orchestrator.ports import StartedRequest
from relevo.policy.admission.admission import Admission, AdmissionLimits
from relevo.policy.handoff.state import HandoffLimits
from relevo.policy.routing.worker_choice import WorkerChooser
from relevo.policy.worker.prefix_cache import prompt_hashes
from relevo.sim.kernel import Kernel
from relevo.wire import messages as wire

LIMITS = HandoffLimits(queue_s=30.0, prefill_s=10.0, transfer_s=5.0, drain_lease_s=2.0, decode_stall_s=20.0)
SITE = KVSite(box_id="box", arena_id="arena", endpoints=(KVEndpoint("shm", "arena", Reach.ARENA),))
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

    def __init__(self, world: World, name: str, epoch: int, block_size: int = 4) -> None:
        self.sent: list[wire.ToWorker] = []
        self.is_ended = self.is_closed = False
        self._world = world
        self.hello = wire.Hello(
            protocol_version=wire.PROTOCOL_VERSION,
            worker_id=WorkerId(name),
            epoch=epoch,
            pid=1,
            role="unified",
            layout=fake_layout(block_size),
            model_name="fake",
            vocab_size=256,
            max_model_len=256,
            kv_site=SITE,
            load=WorkerLoad(),
        )

    def send(self, message: wire.ToWorker) -> None:
        if self.is_ended:
            raise WorkerLost("ended")
        self.sent.append(message)
        if isinstance(message, wire.Fence):
            self._answer(wire.Fenced(message.worker_id, message.epoch, message.nonce))

    def close(self) -> None:
        self.is_closed = True

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
    def __init__(self, *names: str, roles: dict[str, str] | None = None) -> None:
        """Workers without a role are unified."""
        self.kernel = CountingKernel()
        self._roles = roles or {}
        self.membership = Membership([self._member(name) for name in names])
        self.placement = Placement(self.membership, WorkerChooser(), 4, Random(0))
        self.dispatcher = Dispatcher(
            membership=self.membership,
            placement=self.placement,
            admission=Admission(AdmissionLimits()),
            limits=LIMITS,
            model_name="fake",
            metrics=Silent(),
            clock=self.kernel,
            timers=self.kernel,
            kill=lambda worker, reason: None,
            hash_prompt=prompt_hashes,
        )

    def run(self) -> None:
        """What is due now."""
        self.kernel.run(until_ns=self.kernel.now_ns())

    def add(self, name: str) -> None:
        self.membership.add(self._member(name))

    def _member(self, name: str) -> Member:
        return Member(WorkerId(name), self._roles.get(name, "unified"), name)

    def join(self, name: str, epoch: int = 1, block_size: int = 4) -> Link:
        link = Link(self, name, epoch, block_size)
        assert self.membership.connected(WorkerId(name), link)
        self.run()
        return link

    def ask(self, name: str, client: Client | None = None) -> Client:
        client, rng = client or Client(), Random(name)
        prompt = tuple(rng.randrange(256) for _ in range(10))
        sampling = SamplingParams(max_tokens=99, seed=0, temperature=0, ignore_eos=True)
        request = EngineRequest(request_id=RequestId(name), prompt_token_ids=prompt, sampling=sampling, arrived_at_ns=1)
        client.started = self.dispatcher.start(request, client)
        return client

    def is_clean(self) -> bool:
        """No request has left anything behind, not even a timer."""
        return not self.dispatcher.num_in_flight and self.placement.is_idle and self.kernel.next_at_ns is None
