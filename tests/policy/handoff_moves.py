"""What can happen next in a `handoff_world`: what comes sooner or later by itself, and faults within a budget."""

from __future__ import annotations

from collections.abc import Iterator

from handoff_world import (
    INDEX,
    NUM_PLACES,
    REFS,
    Violation,
    Worker,
    World,
    arrive,
    cut,
    die,
    fenced,
    let_go,
    put,
    receive,
    restart,
    say,
    tell,
    work,
)

from relevo.core.outcome import COMPLETE, Cause, RequestEnd
from relevo.policy.handoff import effects, events
from relevo.policy.handoff.state import Phase

GONE = events.EndRequested(RequestEnd(cause=Cause.CLIENT_GONE))
NO_WORKER = RequestEnd.failed("no_worker", "none is ready", 1.0)


def progress(world: World) -> Iterator[tuple[str, World]]:
    """Everything that happens sooner or later in a world without further faults."""
    if world.state.is_gone:
        return
    if world.ask is not None:
        yield from answers(world)
    for i, w in enumerate(world.workers):
        if w.outbox:
            after = put(world, i, w._replace(outbox=w.outbox[1:]))
            event = w.outbox[0]
            if isinstance(event, tuple):
                yield f"hear {i} {event[0]}", fenced(after, i, event[1])
                continue
            if isinstance(event, events.WorkerCut):
                after = after._replace(known_dead=after.known_dead | {i})
            if isinstance(event, events.WorkerDied):
                after = after._replace(known_dead=after.known_dead | {i})
                for former in range(NUM_PLACES):
                    after = fenced(after, i, former)
            yield f"hear {i} {type(event).__name__}", tell(after, event)
        if w.alive and not w.hung:
            if w.inbox:
                yield f"receive {i} {w.inbox[0][0]}", receive(world, i)
            for after in work(world, i):
                heard = w.outbox if w.is_cut else after.workers[i].outbox
                yield f"work {i}", put(after, i, after.workers[i]._replace(outbox=heard))
        if w.alive and w.is_cut:
            yield f"fence itself {i}", die(world, i)
        if w.alive and w.hung and not is_fenced_by_policy(world, i):
            yield f"health check {i}", die(world, i)
    for write in sorted(world.late):
        yield f"late write of {write[0]} arrives", arrive(world, write)
    if any(w.hung and w.alive for w in world.workers) and not is_fence_awaited(world):
        yield from time_passes(world)


def is_fenced_by_policy(world: World, i: int) -> bool:
    """A hung worker that the handoff itself must get rid of: it may write, or the request has to move on."""
    state = world.state
    if state.prefill is not None and state.prefill.worker == REFS[i]:
        return True
    if state.decode is not None and state.decode.worker == REFS[i]:
        return state.phase is not Phase.DRAINING
    return False


def is_fence_awaited(world: World) -> bool:
    """A lease that is renewed until the news of a death arrives would make the worlds countless."""
    legs = (world.state.prefill, world.state.decode)
    return any(leg is not None and leg.let_go_by_ns and not world.workers[INDEX[leg.worker]].alive for leg in legs)


def answers(world: World) -> Iterator[tuple[str, World]]:
    ask, after = world.ask, world._replace(ask=None)
    able = [r for i, r in enumerate(REFS[: len(world.workers)]) if i not in world.known_dead and r not in ask.exclude]
    budget = world.budget
    if isinstance(ask, effects.ChoosePrefill):
        others = [r for r in reversed(able) if r.worker_id != ask.reservation.worker_id]
        if others:
            yield "prefill elsewhere", tell(after, events.PrefillChosen(others[0]))
        if not others or budget.unsplit:
            cheaper = budget._replace(unsplit=max(0, budget.unsplit - 1))
            yield "prefill locally", tell(after._replace(budget=cheaper), events.PrefillChosen(None))
        return
    if not able:
        yield "no route", tell(after, events.NoRoute(NO_WORKER))
        return
    yield "route split", tell(after, events.Routed(able[0], split=True))
    if world.is_network and INDEX[able[-1]] >= NUM_PLACES:  # blocks may be granted by one that joined again
        yield "route to the newcomer", tell(after, events.Routed(able[-1], split=True))
    if budget.unsplit:
        cheaper = budget._replace(unsplit=budget.unsplit - 1)
        yield "route whole", tell(after._replace(budget=cheaper), events.Routed(able[0], split=False))


def time_passes(world: World) -> Iterator[tuple[str, World]]:
    if world.state.due_at_ns is not None:
        yield "tick", tell(world, events.Tick(), world.state.due_at_ns)


def faults(world: World) -> Iterator[tuple[str, World]]:
    """Everything that may happen, within the budget."""
    budget = world.budget
    if world.state.is_gone:
        return
    for i, w in enumerate(world.workers):
        if not w.alive:
            if budget.restarts and i < NUM_PLACES and i in world.known_dead and is_restartable(world, i):
                yield f"restart {i}", restart(world._replace(budget=budget._replace(restarts=budget.restarts - 1)), i)
            continue
        if budget.deaths:
            yield f"die {i}", die(world._replace(budget=budget._replace(deaths=budget.deaths - 1)), i)
        if budget.cuts and not w.is_cut:
            yield f"cut {i}", cut(world._replace(budget=budget._replace(cuts=budget.cuts - 1)), i)
        if budget.hangs and not w.hung:
            yield (
                f"hang {i}",
                put(world._replace(budget=budget._replace(hangs=budget.hangs - 1)), i, w._replace(hung=True)),
            )
        if budget.failures and not w.hung and w.task not in ("none", "quarantined"):
            failed = say(
                let_go(w, "quarantined" if w.task == "granted" else "none"), events.Failed(REFS[i], "step_failed", "")
            )
            yield f"fail {i}", put(world._replace(budget=budget._replace(failures=budget.failures - 1)), i, failed)
    if budget.ticks:
        yield from time_passes(world._replace(budget=budget._replace(ticks=budget.ticks - 1)))
    if budget.client:
        after = world._replace(budget=budget._replace(client=budget.client - 1))
        yield "client gone", tell(after, GONE)
        yield "stop early", tell(after._replace(stopped=True), events.EndRequested(COMPLETE))


def is_restartable(world: World, i: int) -> bool:
    """It was there, the gateway has heard of its end, and nobody follows it yet."""
    if i in world.absent or world.workers[i].outbox:
        return False
    new = NUM_PLACES + i
    return new in world.known_dead and world.workers[new] == Worker(alive=False)


def check_gone(world: World) -> None:
    """A forgotten request was ended, and no worker has anything of it, or will have."""
    if not world.ended:
        raise Violation("gone without an end")
    for i, w in enumerate(world.workers):
        wanted = [m[0] for m in w.inbox if m[0] not in ("release", "abort", "seal", "fence")]
        is_here = w.alive and not w.hung and not w.is_cut
        if is_here and (wanted or w.task != "none") and not frees_itself(w):
            raise Violation(f"worker {i} is left with {w.task} {wanted}")


def frees_itself(w: Worker) -> bool:
    """Its quarantine ends with a Release that is on the way."""
    return w.task == "quarantined" and ("release",) in w.inbox
