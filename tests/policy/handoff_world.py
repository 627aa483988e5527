"""An abstract world around `policy.handoff`: workers with FIFO channels both ways, a client, faults within a budget.

Worlds are immutable and hashable, so that a search can visit every one of them. A token is its own position, so what
the client got must read 0, 1, 2 ... for every continuation. Raises Violation where the world would be harmed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

from relevo.core.baton import SampledToken, SampleState
from relevo.core.events import TokenOutput
from relevo.core.ids import RequestId, WorkerId, WorkerRef
from relevo.core.kv import Reservation
from relevo.core.outcome import Outcome, RequestEnd
from relevo.core.request import FinishReason
from relevo.policy.handoff import effects, events, machine
from relevo.policy.handoff.state import HandoffLimits

REQUEST = RequestId("r")
BLOCK_SIZE = 1
NUM_PROMPT_TOKENS = 2  # two blocks, two chunks
LIMITS = HandoffLimits(
    queue_s=1.0, prefill_s=1.0, transfer_s=1.0, drain_lease_s=1.0, decode_stall_s=1.0, max_attempts=3
)


class Violation(AssertionError):
    pass


class Worker(NamedTuple):
    """What one process has of the request."""

    alive: bool = True
    hung: bool = False
    task: str = "none"  # none, waiting, granted, quarantined, prefill, decode
    target: int = -1  # prefill: whose blocks it writes
    num_sealed: int = 0  # granted: as told; prefill: computed and sealed
    counts: tuple[int, ...] = ()  # prefill, decode: tokens sampled so far
    room: int = 0  # number of the room that it granted last, or writes into; over a network a closed one takes nothing
    is_cut: bool = False  # it is at work, and nothing passes between it and the gateway any more
    inbox: tuple[tuple[Any, ...], ...] = ()
    outbox: tuple[Any, ...] = ()


class LateWrite(NamedTuple):
    """From or to one that is cut off."""

    writer: int
    target: int
    room: int
    is_by_cut: (
        bool  # a writer that is well, or has died, sent what was meant; it may stand beside what another one writes
    )


class Budget(NamedTuple):
    deaths: int = 0
    hangs: int = 0
    failures: int = 0
    ticks: int = 0
    client: int = 0
    unsplit: int = 0  # routes and prefill choices that keep the request on one worker
    cuts: int = 0  # of links: the worker goes on until it fences itself
    restarts: int = 0  # of workers that died: a new incarnation over the same blocks


class World(NamedTuple):
    state: Any  # HandoffState without samples
    outputs: tuple[tuple[tuple[int, ...], bool], ...]  # the samples: tokens, finished
    workers: tuple[Worker, ...]
    budget: Budget
    ask: Any = None  # a Route or ChoosePrefill that the driver has yet to answer
    ended: str = ""
    known_dead: frozenset[int] = frozenset()
    max_tokens: int = 2
    stopped: bool = False
    absent: frozenset[int] = frozenset()  # places where nobody ever was
    is_network: bool = False  # blocks travel; otherwise workers write into each other's memory
    unfenced: frozenset[tuple[int, int]] = frozenset()  # (new incarnation, who has yet to let go of the former one)
    late: frozenset[LateWrite] = frozenset()  # under way


def ref(index: int) -> WorkerRef:
    return WorkerRef(WorkerId(f"w{index}"), 1)


NUM_PLACES = 4  # a worker's second incarnation is so many further on
REFS = (*(ref(i) for i in range(NUM_PLACES)), *(WorkerRef(ref(i).worker_id, 2) for i in range(NUM_PLACES)))
INDEX = {r: i for i, r in enumerate(REFS)}


def first_world(
    num_workers: int, budget: Budget, *, num_samples: int = 1, max_tokens: int = 2, is_network: bool = False
) -> World:
    waiting = machine.start(REQUEST, num_prompt_tokens=NUM_PROMPT_TOKENS, num_samples=num_samples, limits=LIMITS)
    state, asked = machine.advance(waiting, events.LetIn(), 0)
    workers = (Worker(),) * num_workers
    absent: frozenset[int] = frozenset()
    if budget.restarts:
        workers += (Worker(alive=False),) * (NUM_PLACES + num_workers - len(workers))
        absent = frozenset(range(num_workers, len(workers)))
    return World(
        state=replace(state, samples=()),
        outputs=((((), False)),) * num_samples,
        workers=workers,
        budget=budget,
        ask=asked[0],
        max_tokens=max_tokens,
        is_network=is_network,
        known_dead=absent,
        absent=frozenset(i for i in absent if i < NUM_PLACES),
    )


# ---- the gateway -----------------------------------------------------------------------------------------------------


def tell(world: World, event: events.Event, now_ns: int = 0) -> World:
    """Advance the handoff by one event and carry out its effects."""
    samples = tuple(
        SampleState(i, list(tokens), FinishReason.LENGTH if finished else None)
        for i, (tokens, finished) in enumerate(world.outputs)
    )
    state, asked = machine.advance(replace(world.state, samples=samples), event, now_ns)
    outputs = tuple((tuple(s.output_token_ids), s.finish_reason is not None) for s in samples)
    for tokens, _ in outputs:
        if tokens != tuple(range(len(tokens))):
            raise Violation(f"the client got {tokens}")
    if state.failure is not None:
        state = replace(state, failure=replace(state.failure, reason=""))
    state = replace(state, samples=(), excluded=tuple(sorted(state.excluded)))
    world = world._replace(state=state, outputs=outputs)
    for effect in asked:
        world = carry_out(world, effect)
    return world


def carry_out(world: World, effect: effects.Effect) -> World:
    match effect:
        case effects.Route() | effects.ChoosePrefill():
            newest = replace(effect, reason="") if isinstance(effect, effects.Route) else effect
            return world._replace(ask=newest)
        case effects.SendReserve(worker):
            return send(world, worker, ("reserve",))
        case effects.SendPrefill(worker, reservation):
            target = INDEX[WorkerRef(reservation.worker_id, reservation.epoch)]
            return send(world, worker, ("prefill", target, reservation.num_hit_tokens, reservation.generations[0]))
        case effects.SendSeal(worker, num_tokens):
            return send(world, worker, ("seal", num_tokens))
        case effects.SendStartDecode(worker, num_sealed):
            if num_sealed != NUM_PROMPT_TOKENS or not all(tokens for tokens, _ in world.outputs):
                raise Violation("decode was started before its time")
            return send(world, worker, ("start", tuple(len(tokens) for tokens, _ in world.outputs)))
        case effects.SendSubmit(worker, use_reservation, resume):
            counts = tuple(len(tokens) for tokens, _ in world.outputs)
            if resume != any(counts):
                raise Violation("resume and what was emitted differ")
            return send(world, worker, ("submit", use_reservation, counts))
        case effects.SendAbort(worker, writer_active):
            return send(world, worker, ("abort", writer_active))
        case effects.SendRelease(worker):
            return send(world, worker, ("release",))
        case effects.KillWorker(worker):
            return die(world, INDEX[worker])
        case effects.Emit():
            if world.ended:
                raise Violation("emitted after the end")
            return world
        case RequestEnd(outcome=outcome):
            if world.ended:
                raise Violation("ended twice")
            complete = all(finished for _, finished in world.outputs)
            if outcome is Outcome.FINISHED and not (complete or world.stopped):
                raise Violation("finished before it was complete")
            return world._replace(ended=str(outcome))
    raise AssertionError(effect)


def send(world: World, worker: WorkerRef, message: tuple[Any, ...]) -> World:
    i = INDEX[worker]
    w = world.workers[i]
    if w.alive and not w.is_cut:
        return put(world, i, w._replace(inbox=(*w.inbox, message)))
    if i in world.known_dead:  # the driver owes the answer of a connection that is gone
        ended = end_of_link(world, i) if w.is_cut else events.WorkerDied(worker)
        return put(world, i, w._replace(outbox=(*w.outbox, ended)))
    return world


def end_of_link(world: World, i: int) -> events.WorkerCut:
    return events.WorkerCut(REFS[i], may_write=not world.is_network)


def cut(world: World, i: int) -> World:
    """What is under way is lost in both directions; it works on, and does not know."""
    w = world.workers[i]
    world = put(world, i, w._replace(inbox=(), outbox=(end_of_link(world, i),), is_cut=True))
    for writer in range(len(world.workers)):
        world = with_late_write(world, writer)
    return world


def with_late_write(world: World, writer: int) -> World:
    """What goes from or to one that is cut off may take as long as it likes: until after both have begun anew."""
    w = world.workers[writer]
    if not world.is_network or not w.alive or w.task != "prefill":
        return world
    if not w.is_cut and not world.workers[w.target].is_cut:
        return world
    return world._replace(late=world.late | {LateWrite(writer, w.target, w.room, w.is_cut)})


def takes(world: World, i: int, epoch: int, room: int) -> bool:
    """Whether a write that names them lands there."""
    w = world.workers[i]
    return w.alive and w.task == "granted" and (REFS[i].epoch, w.room) == (epoch, room)


def arrive(world: World, write: LateWrite) -> World:
    """At the address it was for, whoever is there now. Taken by the epoch and the room that it names, and by nothing
    else."""
    writer, target, room, is_by_cut = write
    world = world._replace(late=world.late - {write})
    place = target % NUM_PLACES
    heirs = [i for i in (place + NUM_PLACES, place) if i < len(world.workers) and world.workers[i].alive]
    if not heirs:
        return world
    heir = heirs[0]
    if not takes(world, heir, REFS[target].epoch, room):
        return world
    if heir != target:
        raise Violation(f"a late write for {REFS[target]} landed in a room of {REFS[heir]}")
    for i, other in enumerate(world.workers):
        rooms = [(message[1], message[3]) for message in other.inbox if message[0] == "prefill"]
        rooms += [(other.target, other.room)] if other.task == "prefill" else []
        if is_by_cut and i != writer and other.alive and (heir, room) in rooms:
            raise Violation(f"a late write of {REFS[writer]} landed in a room that is another writer's")
    return world


def put(world: World, i: int, worker: Worker) -> World:
    return world._replace(workers=(*world.workers[:i], worker, *world.workers[i + 1 :]))


def die(world: World, i: int) -> World:
    """The process ends; what it sent before still arrives, then the end of its connection."""
    w = world.workers[i]
    if not w.alive:
        return world
    return put(world, i, Worker(alive=False, outbox=(*w.outbox, events.WorkerDied(REFS[i]))))


def restart(world: World, i: int) -> World:
    """A second incarnation joins; requests reach it only when all others have let go of the first one's blocks."""
    new = NUM_PLACES + i
    others = [j for j, w in enumerate(world.workers) if w.alive]
    for j in others:
        world = put(world, j, world.workers[j]._replace(inbox=(*world.workers[j].inbox, ("fence", i))))
    world = put(world, new, Worker())
    return let_in(world._replace(unfenced=world.unfenced | {(new, j) for j in others}), new)


def let_in(world: World, new: int) -> World:
    is_ready = world.workers[new].alive and not any(joining == new for joining, _ in world.unfenced)
    return world._replace(known_dead=world.known_dead - {new}) if is_ready else world


def fenced(world: World, who: int, former: int) -> World:
    """`who` has let go of the blocks of the incarnation `former`, or is gone."""
    new = former + NUM_PLACES
    if (new, who) not in world.unfenced:
        return world
    return let_in(world._replace(unfenced=world.unfenced - {(new, who)}), new)


# ---- a worker --------------------------------------------------------------------------------------------------------


def check_nobody_writes(world: World, target: int, what: str) -> None:
    if world.is_network:  # the room is closed now: what still comes for it is refused
        return
    for w in world.workers:  # a message that waits behind a fence is refused
        queued = any(m[0] == "prefill" and m[1] == target for m in w.inbox)
        if w.alive and (queued or (w.task == "prefill" and w.target == target)):
            raise Violation(f"blocks were {what} while a prefill worker may still write into them")


def receive(world: World, i: int) -> World:
    w = world.workers[i]
    message, w = w.inbox[0], w._replace(inbox=w.inbox[1:])
    world = put(world, i, w)
    match message:
        case ("reserve",):
            return put(world, i, idle(w)._replace(task="waiting"))
        case ("prefill", target, num_hit, room):
            counts = (0,) * len(world.outputs)
            others = [each for each in world.workers if each.alive and each.task == "prefill"]
            if any((each.target, each.room) == (target, room) for each in others):
                raise Violation("two workers write into one room")
            w = idle(w)._replace(task="prefill", target=target, num_sealed=num_hit, counts=counts, room=room)
            return put(world, i, w)
        case ("seal", num_tokens):
            if w.task == "granted" and num_tokens <= w.num_sealed:
                raise Violation("sealed tokens went backwards")
            return put(world, i, w._replace(num_sealed=num_tokens)) if w.task == "granted" else world
        case ("start", counts):
            if w.task in ("none", "quarantined"):  # it failed, the news is on its way
                return put(world, i, say(w, events.Failed(REFS[i], "handoff_failed", "")))
            if w.task != "granted":
                raise Violation(f"decode was started on a worker that is {w.task}")
            check_nobody_writes(world, i, "taken over")
            return put(world, i, w._replace(task="decode", counts=counts))
        case ("submit", use_reservation, counts):
            if use_reservation:
                if w.task in ("none", "quarantined"):
                    return put(world, i, say(w, events.Failed(REFS[i], "handoff_failed", "")))
                if w.task != "granted":
                    raise Violation(f"a reservation was used on a worker that is {w.task}")
                check_nobody_writes(world, i, "taken over")
            else:
                w = idle(w)
            return put(world, i, w._replace(task="decode", counts=counts))
        case ("abort", writer_active):
            if w.task == "granted" and not writer_active:
                check_nobody_writes(world, i, "freed")
            keeps = w.task == "quarantined" or (w.task == "granted" and writer_active)
            return put(world, i, say(let_go(w, "quarantined" if keeps else "none"), events.Dropped(REFS[i])))
        case ("fence", former):
            w = world.workers[i]
            if w.task == "prefill" and w.target == former:
                w = say(let_go(w), events.Failed(REFS[i], "worker_lost", ""))
            refused = [m for m in w.inbox if m[0] == "prefill" and m[1] == former]
            w = w._replace(inbox=tuple(m for m in w.inbox if m not in refused))
            w = say(w, *(events.Failed(REFS[i], "worker_lost", "") for _ in refused), ("fenced", former))
            return put(world, i, w)
        case ("release",):
            check_nobody_writes(world, i, "released")
            return put(world, i, let_go(w)) if w.task == "quarantined" else world
    raise AssertionError(message)


def idle(w: Worker) -> Worker:
    if w.task != "none":
        raise Violation(f"a worker that is {w.task} was given the request once more")
    return w


def let_go(w: Worker, task: str = "none") -> Worker:
    return w._replace(task=task, target=-1, num_sealed=0, counts=())


def say(w: Worker, *events: events.Event | tuple[str, int]) -> Worker:
    return w._replace(outbox=(*w.outbox, *events))


def sample(world: World, i: int, w: Worker, s: int) -> Worker:
    """One more token of continuation `s`."""
    count = w.counts[s]
    finish = FinishReason.LENGTH if count + 1 == world.max_tokens else None
    output = TokenOutput(REQUEST, s, (SampledToken(count),), finish)
    w = w._replace(counts=(*w.counts[:s], count + 1, *w.counts[s + 1 :]))
    return say(w, events.Tokens(REFS[i], output))


def work(world: World, i: int) -> Iterator[World]:
    """What the worker can do by itself."""
    w = world.workers[i]
    if w.task == "waiting":
        num_blocks = NUM_PROMPT_TOKENS // BLOCK_SIZE
        if i >= NUM_PLACES:
            check_nobody_writes(world, i - NUM_PLACES, "granted by the next incarnation")
        granted = Reservation(
            request_id=REQUEST,
            worker_id=REFS[i].worker_id,
            epoch=REFS[i].epoch,
            block_size=BLOCK_SIZE,
            block_ids=tuple(range(num_blocks)),
            generations=(w.room + world.is_network,) * num_blocks,
            num_hit_tokens=0,
        )
        yield put(world, i, say(w, events.Granted(granted))._replace(task="granted", room=w.room + world.is_network))
    elif w.task == "prefill":
        yield with_late_write(put(world, i, prefill_step(world, i, w)), i)
    elif w.task == "decode":
        for s, count in enumerate(w.counts):
            if count < world.max_tokens:
                after = sample(world, i, w, s)
                done = all(c == world.max_tokens for c in after.counts)
                yield put(world, i, let_go(after) if done else after)


def prefill_step(world: World, i: int, w: Worker) -> Worker:
    """A chunk and its seal, then the last chunk and first tokens one by one, then the last seal."""
    target = world.workers[w.target]
    is_open = target.alive and target.task == "granted" and target.room == w.room
    if is_open and w.num_sealed < target.num_sealed:
        raise Violation("sealed blocks are written again")
    if w.num_sealed < NUM_PROMPT_TOKENS - 1:
        return say(w._replace(num_sealed=w.num_sealed + 1), events.Sealed(REFS[i], w.num_sealed + 1))
    if 0 in w.counts:
        return sample(world, i, w, w.counts.index(0))
    last = NUM_PROMPT_TOKENS
    return say(let_go(w), events.Sealed(REFS[i], last), events.PrefillFinished(REFS[i], last, 1, 0.1))
