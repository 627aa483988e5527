"""Prefill workers of one core each before a decode worker that has room for everything and never computes a prompt:
a world in which routing of prompts decides all, through one gateway or through several that gossip or do not.

Every request asks for one token, so its prefill worker answers it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import permutations
from random import Random

from worlds import LAYOUT, assert_nothing_is_left, config, worker

from relevo.core.decisions import Decision, Fact
from relevo.core.events import StepCosts
from relevo.core.ids import BlockHash
from relevo.policy.handoff.state import HandoffLimits
from relevo.policy.perf.step_time import FittedStepTimes
from relevo.policy.routing.router import RoutingPolicy
from relevo.sim.clients import Habits
from relevo.sim.config import Fault, FaultKind, NetworkSpec, ServingSpec, WorldConfig
from relevo.sim.kernel import seconds
from relevo.sim.network import LinkTraits
from relevo.sim.results import RequestOutcome, WorkerResult
from relevo.sim.world import World
from relevo.workload.requests import Workload, WorkloadRequest

BLOCK_SIZE = LAYOUT.block_size
ONE_CORE = FittedStepTimes(StepCosts(base_s=0.05, per_token_s=0.005, per_kv_token_s=2.5e-5))  # SmolLM2, docs/lab-log.md
_NEVER = FittedStepTimes(StepCosts(base_s=1e6, per_token_s=1e6, per_kv_token_s=0.0))  # of a step not worth waiting for
_PATIENT = HandoffLimits(queue_s=None, prefill_s=None)  # backlogs are minutes long
_CHOSEN_S = 0.01  # after requests came at once all of them have a prefill worker, and no step has ended

Arrival = tuple[float, Sequence[int], bytes]  # time in seconds, prompt, session


def rows_of(arrivals: Sequence[Arrival]) -> list[WorkloadRequest]:
    """Every token of a prompt is content of its own."""
    return [
        WorkloadRequest(
            row=row,
            num_prompt_tokens=len(prompt),
            num_output_tokens=1,
            arrived_at_s=at_s,
            hash_ids=prompt,
            hash_block_size=1,
        )
        for row, (at_s, prompt, _) in enumerate(arrivals)
    ]


@dataclass
class Waiting:
    """Implements core.decisions.DecisionLog: what is left of prompts that have a worker, by all gateways."""

    num_workers: int
    reasons: Counter[str] = field(default_factory=Counter)
    peak_skew: float = 0.0  # max/mean of prompt tokens that wait over workers, once every worker could be busy
    _num_prompt_tokens: dict[str, int] = field(default_factory=dict)
    _left: dict[str, tuple[str, int]] = field(default_factory=dict)  # worker and tokens, by request

    def note(self, at_ns: int, decider: str, decision: Decision, subject: str, facts: Mapping[str, Fact]) -> None:
        match decision:
            case Decision.ARRIVE:
                self._num_prompt_tokens[subject] = int(facts["num_prompt_tokens"])
            case Decision.PREFILL:
                self.reasons[str(facts["reason"]).split(":")[0].split(";")[0]] += 1
                self._left[subject] = (str(facts["worker"]), self._num_prompt_tokens[subject])
                self._note_skew()
            case Decision.CHUNK if subject in self._left:
                num_computed = int(facts["start"]) + int(facts["num_tokens"])
                self._left[subject] = (decider, self._num_prompt_tokens[subject] - num_computed)
            case Decision.END:
                self._left.pop(subject, None)

    def _note_skew(self) -> None:
        if len(self._left) >= 16 * self.num_workers:
            by_worker: Counter[str] = Counter()
            for worker_id, num_tokens in self._left.values():
                by_worker[worker_id] += num_tokens
            self.peak_skew = max(self.peak_skew, max(by_worker.values()) * self.num_workers / by_worker.total())


@dataclass
class PrefillFleet:
    """`run` once. A request comes to one of the gateways at random."""

    policy: RoutingPolicy = RoutingPolicy.TTFT
    num_workers: int = 4
    num_blocks: int = 1000
    abort_fraction: float = 0.0  # of clients leave, two seconds after they came on average
    num_gateways: int = 1
    gossip_delay_s: float | None = None  # None: they do not hear of each other
    seed: int = 0
    world: World = field(init=False)
    waiting: Waiting = field(init=False)

    def run(self, arrivals: Sequence[Arrival]) -> None:
        self.start(rows_of(arrivals), [session for _, _, session in arrivals])
        self.finish()

    def start(self, rows: Sequence[WorkloadRequest], sessions: Sequence[bytes]) -> None:
        """Until those that come at once have been given to workers."""
        rng = Random(self.seed)
        habits = [
            Habits(session=session, leaves_after_s=rng.expovariate(0.5) if rng.random() < self.abort_fraction else None)
            for session in sessions
        ]
        self.waiting = Waiting(self.num_workers)
        self.world = World(
            self._config(), Workload(requests=rows), habits=lambda row: habits[row.row], decisions=self.waiting
        )
        self.world.start()
        self.world.kernel.run(self.world.traffic_at_ns + seconds(_CHOSEN_S))

    def finish(self) -> None:
        self.world.kernel.run()
        self.world.finish()
        assert_nothing_is_left(self.world)
        outcomes = Counter(request.outcome for request in self.world.result.requests)
        assert set(outcomes) <= {RequestOutcome.FINISHED, RequestOutcome.ABORTED}, outcomes
        assert bool(outcomes[RequestOutcome.ABORTED]) == bool(self.abort_fraction)

    def _config(self) -> WorldConfig:
        fleet = [
            worker(
                f"prefill-{index}",
                "prefill",
                times=ONE_CORE,
                num_blocks=self.num_blocks,
                max_prefill_tokens=512,
                max_running=64,
            )
            for index in range(self.num_workers)
        ]
        decode = worker(
            "decode-0", "decode", times=_NEVER, num_blocks=200_000, max_running=10_000, max_batched_tokens=10_000
        )
        serving = ServingSpec(
            layout=LAYOUT,
            max_model_len=self.num_blocks * BLOCK_SIZE,
            max_ahead_steps=1e9,  # all of it is sent at once: no line is in the way of what is measured
            max_ahead_s=float("inf"),
            handoff=_PATIENT,
            routing=self.policy,
        )
        names = [f"gateway-{index}" for index in range(self.num_gateways)]
        pairs = permutations(names, 2) if self.gossip_delay_s is None else ()
        cuts = [Fault(at_s=0.0, kind=FaultKind.CUT, target=f"{teller}>{listener}") for teller, listener in pairs]
        return config(
            (*fleet, decode),
            self.num_gateways,
            serving=serving,
            network=NetworkSpec(gossip=LinkTraits(latency_s=self.gossip_delay_s or 0.0)),
            faults=tuple(cuts),
            seed=self.seed,
        )

    # ---- what came of it ---------------------------------------------------------------------------------------------

    def prefix_hashes(self, row: int, num_tokens: int) -> list[BlockHash]:
        """Of a request that is under way."""
        return self.world.clients[row].text.hashes(num_tokens // BLOCK_SIZE, BLOCK_SIZE)

    @property
    def ttft_s(self) -> list[float]:
        """Sorted; of those whose clients stayed."""
        return sorted(ttft for each in self.world.result.requests if (ttft := each.times.ttft_s) is not None)

    @property
    def prefill_results(self) -> list[WorkerResult]:
        return [each for each in self.world.result.workers if each.role == "prefill"]

    @property
    def num_computed_tokens(self) -> int:
        return sum(each.num_prefill_tokens for each in self.prefill_results)
