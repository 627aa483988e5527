"""Requests with a known cause of slowness, in simulated worlds: what befell each is set by its scenario.

A scenario is repeated in episodes, far enough apart that one leaves nothing to the next. Its victims are known by what
was done to the world (who came behind whom, what was cut, killed or pushed out), never from a timeline. What the HTTP
side marks, the sim's clients do: when the first and the last token were read.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from worlds import LAYOUT, config, split, worker

from relevo.cli.timeline_screen import Look, timeline_lines
from relevo.core.events import StepCosts
from relevo.core.request import ServiceTerms
from relevo.core.timeline import Timeline
from relevo.policy.perf.step_time import FittedStepTimes
from relevo.policy.slowness.explain import explain
from relevo.policy.slowness.words import Explanation, SlowCause
from relevo.sim.clients import Client, Habits
from relevo.sim.config import Fault, FaultKind, NetworkSpec, ServingSpec, WorkerSpec
from relevo.sim.network import LinkTraits
from relevo.sim.world import World
from relevo.workload.requests import Workload, WorkloadRequest

C = SlowCause
OWN = frozenset({C.NOTHING, C.OWN_PROMPT, C.OWN_OUTPUT})
EPISODE_S = 60.0


@dataclass
class Script:
    """Rows of one world, in the order of arrival; `victims` are those whose cause is known."""

    rng: Random
    rows: list[WorkloadRequest] = field(default_factory=list)
    habits: dict[int, Habits] = field(default_factory=dict)
    victims: set[int] = field(default_factory=set)
    faults: list[Fault] = field(default_factory=list)

    def ask(
        self,
        at_s: float,
        prompt: int,
        output: int,
        *,
        is_victim: bool = False,
        ids: Sequence[int] = (),
        **habits: Any,
    ) -> None:
        row = len(self.rows)
        self.rows.append(
            WorkloadRequest(
                row=row,
                num_prompt_tokens=prompt,
                num_output_tokens=output,
                arrived_at_s=at_s,
                hash_ids=ids,
                hash_block_size=16 if ids else 0,
            )
        )
        self.habits[row] = Habits(ignores_eos=True, **habits)
        if is_victim:
            self.victims.add(row)

    def strike(self, at_s: float, kind: FaultKind, target: str, **more: float) -> None:
        self.faults.append(Fault(at_s=at_s, kind=kind, target=target, **more))


@dataclass(frozen=True, kw_only=True)
class Scenario:
    name: str
    expected: frozenset[SlowCause]
    workers: tuple[WorkerSpec, ...]
    episode: Callable[[Script, float], None]  # from that second on
    parts: Mapping[str, Any] = field(default_factory=dict)
    is_fresh: bool = False  # a world for each episode: routers learn from what befell them


@dataclass(frozen=True)
class Told:
    scenario: Scenario
    row: int
    timeline: Timeline
    explanation: Explanation
    ttft_s: float | None
    e2e_s: float

    @property
    def is_right(self) -> bool:
        return self.explanation.cause in self.scenario.expected


def serving(**parts: Any) -> ServingSpec:
    """Workers learn what their steps cost while they run, as live ones do."""
    return ServingSpec(**{"layout": LAYOUT, "max_model_len": 8192, "learns_costs": True} | parts)


def run(scenario: Scenario, num_victims: int, seed: int = 0) -> list[Told]:
    """As many episodes as it takes."""
    rng = Random(f"{scenario.name} {seed}")
    told: list[Told] = []
    while len(told) < num_victims:
        script = Script(rng)
        at_s = 1.0
        while len(script.victims) + len(told) < num_victims:
            scenario.episode(script, at_s)
            for _ in range(rng.randrange(4)):  # others, that do no harm
                script.ask(at_s + rng.uniform(0.0, 3.0), rng.randint(1, 60), rng.randint(1, 20))
            at_s += EPISODE_S
            if scenario.is_fresh:
                break
        told += _run(scenario, script, seed)
    return told[:num_victims]


def _run(scenario: Scenario, script: Script, seed: int) -> list[Told]:
    told: list[Told] = []

    def on_end(client: Client) -> None:
        if client.row.row in script.victims:
            told.append(_told(scenario, client))

    parts = {"serving": serving(), **scenario.parts}
    made = config(scenario.workers, faults=tuple(script.faults), jumps=False, seed=seed, **parts)
    rows = sorted(script.rows, key=lambda row: (row.arrived_at_s or 0.0, row.row))
    World(made, Workload(requests=rows), habits=lambda row: script.habits[row.row], on_end=on_end).run()
    assert len(told) == len(script.victims), "every request has its end"
    return sorted(told, key=lambda each: each.row)


def _told(scenario: Scenario, client: Client) -> Told:
    assert client._started is not None and client.end is not None
    timeline, result = client._started.timeline, client.result
    times = result.token_at_ns[0]
    if times:
        output_ns = next(leg.first_output_at_ns for leg in timeline.legs if leg.first_output_at_ns is not None)
        timeline.first_written_at_ns, timeline.last_written_at_ns = times[0], times[-1]
        timeline.blocked_first_s = (times[0] - output_ns) / 1e9
        timeline.blocked_s = max(times[-1] - (timeline.last_output_at_ns or 0), 0) / 1e9
    timeline.ended_at_ns = result.ended_at_ns
    explanation = explain(
        timeline,
        num_prompt_tokens=result.num_prompt_tokens,
        num_cached_tokens=result.num_cached_tokens,
        num_output_tokens=len(times),
        end=client.end,
    )
    ttft_s = (times[0] - result.arrived_at_ns) / 1e9 if times else None
    return Told(
        scenario, client.row.row, timeline, explanation, ttft_s, (result.ended_at_ns - result.arrived_at_ns) / 1e9
    )


# ---- what befalls them -----------------------------------------------------------------------------------------------


def _line(script: Script, at_s: float) -> None:
    """More at once than the worker has slots."""
    for number in range(script.rng.randint(8, 14)):
        script.ask(at_s + number * 0.01, script.rng.randint(50, 150), 100, is_victim=number >= 6)


def _room(script: Script, at_s: float) -> None:
    """The decode worker's blocks are all in use by streams of the same tenant."""
    for number in range(2):
        script.ask(at_s + 0.1 * number, 450, script.rng.randint(200, 300))
    script.ask(at_s + 1.0, 900, 4, is_victim=True)


def _queue(script: Script, at_s: float) -> None:
    """Prompts that came at once, sent to the worker far ahead."""
    for number in range(6):
        script.ask(at_s + number * 0.002, script.rng.randint(1500, 2500), 8, is_victim=number >= 4)


def _evicted(script: Script, at_s: float) -> None:
    """A conversation's first turn is pushed out by others before its second."""
    first = script.rng.randrange(10**9)
    ids = range(first, first + 100)
    script.ask(at_s, 1600, 4, ids=ids[:100])
    for number in range(6):
        script.ask(at_s + 2 + number, 2000, 4)
    script.ask(at_s + 20, 1700, 4, is_victim=True, ids=ids)


def _slow_link(script: Script, at_s: float) -> None:
    """4 kB of KV for each token of the prompt, over a link of 2 MB/s."""
    script.ask(at_s, script.rng.randint(800, 3000), 30, is_victim=True)


def _cut_link(script: Script, at_s: float) -> None:
    """No block passes for a while; before it was quick."""
    script.ask(at_s, 200, 4)
    script.strike(at_s + 9.99, FaultKind.CUT, "prefill-0>kv", for_s=script.rng.uniform(1.0, 3.0))
    script.ask(at_s + 10, script.rng.randint(800, 3000), 30, is_victim=True)


def _preempted(script: Script, at_s: float) -> None:
    """Streams outgrow the blocks: the last of them gives way until another has ended."""
    for number in range(3):
        script.ask(at_s + number * 0.2, 400, 250, is_victim=number == 2)


def _killed(script: Script, at_s: float) -> None:
    """Its worker dies, early or late, and comes back a second later."""
    script.strike(at_s + script.rng.uniform(0.05, 1.5), FaultKind.KILL, "unified-0")
    script.ask(at_s, 1000, 150, is_victim=True)


def _hung(script: Script, at_s: float) -> None:
    """Its worker stands still until it is given up."""
    script.strike(at_s + script.rng.uniform(0.3, 1.5), FaultKind.STOP, "unified-0", for_s=30.0)
    script.ask(at_s, 200, 200, is_victim=True)


def _neighbour(script: Script, at_s: float) -> None:
    """A long prompt comes while it decodes, on the same worker."""
    script.ask(at_s, 100, 60, is_victim=True)
    script.ask(at_s + script.rng.uniform(0.2, 0.5), script.rng.randint(5000, 8000), 2)


def _prompt_neighbour(script: Script, at_s: float) -> None:
    """A long prompt of another tenant shares the steps of its own."""
    script.ask(at_s, 6000, 2, terms=ServiceTerms(tenant="a"))
    script.ask(at_s + 0.02, 2500, 8, is_victim=True, terms=ServiceTerms(tenant="b"))


def _slow_client(script: Script, at_s: float) -> None:
    script.ask(at_s, 200, 100, is_victim=True, reads_every_s=script.rng.uniform(0.03, 0.2))


def _moved(script: Script, at_s: float) -> None:
    """The worker with a conversation's cache is killed between two turns."""
    first = script.rng.randrange(10**9)
    ids = range(first, first + 220)
    session = str(first).encode()
    script.ask(at_s, 3300, 4, ids=ids[:206], session=session)
    script.strike(at_s + 10, FaultKind.KILL, "unified-0")
    script.strike(at_s + 10, FaultKind.KILL, "unified-1")
    script.ask(at_s + 20, 3500, 4, is_victim=True, ids=ids, session=session)


def _passed_over(script: Script, at_s: float) -> None:
    """The worker with a conversation's cache is too busy at its second turn."""
    first = script.rng.randrange(10**9)
    ids = range(first, first + 220)
    session = str(first).encode()
    script.ask(at_s, 3300, 4, ids=ids[:206], session=session)
    script.strike(at_s + 9, FaultKind.DRAIN, "unified-0")
    script.strike(at_s + 9, FaultKind.DRAIN, "unified-1")
    script.ask(at_s + 20, 3500, 4, is_victim=True, ids=ids, session=session)


def _crowd(script: Script, at_s: float) -> None:
    """Many streams beside it; each makes a step a little longer."""
    for number in range(40):
        script.ask(at_s + number * 0.002, 10, 60, is_victim=number in (10, 20, 30))


def _slow_steps(script: Script, at_s: float) -> None:
    """Its worker's cores do something else."""
    script.strike(at_s + 0.5, FaultKind.SLOW, "unified-0", for_s=10.0, times=script.rng.uniform(4, 9))
    script.ask(at_s, 100, 150, is_victim=True)


def _fine(script: Script, at_s: float) -> None:
    script.ask(at_s, script.rng.randint(10, 3000), script.rng.randint(2, 300), is_victim=True)


SLOW_ROWS = FittedStepTimes(StepCosts(base_s=0.01, per_token_s=1e-3, per_kv_token_s=1e-7))
UNIFIED = (worker("unified-0", "unified", num_blocks=2000),)
TWO = (*UNIFIED, worker("unified-1", "unified", num_blocks=2000))

SCENARIOS = (
    Scenario(
        name="line",
        expected=frozenset({C.LINE}),
        workers=(worker("unified-0", "unified", max_running=4),),
        episode=_line,
    ),
    Scenario(
        name="room",
        expected=frozenset({C.ROOM}),
        workers=split(1, 1, num_blocks=112),
        episode=_room,
    ),
    Scenario(
        name="worker queue",
        expected=frozenset({C.WORKER_QUEUE}),
        workers=UNIFIED,
        episode=_queue,
        parts={"serving": serving(max_ahead_s=30.0, max_ahead_steps=1000.0)},
    ),
    Scenario(
        name="evicted prefix",
        expected=frozenset({C.EVICTED_PREFIX}),
        workers=(worker("unified-0", "unified", num_blocks=300),),
        episode=_evicted,
    ),
    Scenario(
        name="slow link",
        expected=frozenset({C.SLOW_LINK}),
        workers=split(1, 1),
        episode=_slow_link,
        parts={"network": NetworkSpec(port=LinkTraits(latency_s=5e-6, bandwidth_bytes_per_s=2e6))},
        is_fresh=True,
    ),
    Scenario(
        name="cut link",
        expected=frozenset({C.SLOW_LINK}),
        workers=split(1, 1),
        episode=_cut_link,
        parts={"serving": serving(learns_costs=False)},  # not yet learned, they would keep prompts off the link
        is_fresh=True,
    ),
    Scenario(
        name="preemption",
        expected=frozenset({C.PREEMPTION}),
        workers=(worker("unified-0", "unified", num_blocks=86),),
        episode=_preempted,
    ),
    Scenario(name="worker killed", expected=frozenset({C.WORKER_LOST}), workers=UNIFIED, episode=_killed),
    Scenario(
        name="worker hung",
        expected=frozenset({C.WORKER_LOST}),
        workers=TWO[:1],
        episode=_hung,
        parts={"serving": serving(heartbeat_timeout_s=4.0)},
    ),
    Scenario(name="long neighbour", expected=frozenset({C.LONG_NEIGHBOUR}), workers=UNIFIED, episode=_neighbour),
    Scenario(
        name="neighbour of a prompt",
        expected=frozenset({C.LONG_NEIGHBOUR}),
        workers=UNIFIED,
        episode=_prompt_neighbour,
    ),
    Scenario(name="slow client", expected=frozenset({C.SLOW_CLIENT}), workers=UNIFIED, episode=_slow_client),
    Scenario(name="cold after a death", expected=frozenset({C.MOVED_PREFIX}), workers=TWO, episode=_moved),
    Scenario(name="cold after a drain", expected=frozenset({C.MOVED_PREFIX}), workers=TWO, episode=_passed_over),
    Scenario(
        name="crowded steps",
        expected=frozenset({C.CROWDED_STEPS}),
        workers=(worker("unified-0", "unified", num_blocks=2000, max_running=64, times=SLOW_ROWS),),
        episode=_crowd,
    ),
    Scenario(name="slow steps", expected=frozenset({C.SLOW_STEPS}), workers=UNIFIED, episode=_slow_steps),
    Scenario(name="nothing, split", expected=OWN, workers=split(1, 1), episode=_fine),
    Scenario(name="nothing, whole", expected=OWN, workers=UNIFIED, episode=_fine),
)


def confusion(told: Sequence[Told]) -> Iterator[str]:
    """A row per injected cause: how many, how many right, and what the others were called."""
    yield "| injected | requests | named right | called otherwise |"
    yield "|---|---|---|---|"
    for name in dict.fromkeys(each.scenario.name for each in told):
        of = [each for each in told if each.scenario.name == name]
        wrong = Counter(each.explanation.cause.value for each in of if not each.is_right)
        others = ", ".join(f"{cause} {number}" for cause, number in wrong.most_common()) or "-"
        right = sum(each.is_right for each in of)
        yield f"| {name} | {len(of)} | {right} ({right / len(of):.1%}) | {others} |"


def main(num_victims: int, wanted: Sequence[str]) -> None:
    """The table of confusion; with names of scenarios, also the first requests of each."""
    everything: list[Told] = []
    for scenario in SCENARIOS:
        if wanted and scenario.name not in wanted:
            continue
        told = run(scenario, num_victims)
        everything += told
        for each in told[:6] if wanted else ():
            lines = timeline_lines({"id": f"row {each.row}"}, each.explanation, Look())
            sys.stdout.write("\n".join([*lines, "", ""]))
    sys.stdout.write("\n".join([*confusion(everything), ""]))


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
