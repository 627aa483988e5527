"""Workers that join and are removed while requests run."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence

import pytest
from by_hand import Link, World
from entry_counts import entry_counts

from relevo.core.errors import SettingsError
from relevo.core.ids import WorkerId
from relevo.core.outcome import COMPLETE
from relevo.core.request import FinishReason
from relevo.orchestrator.connections import Connections
from relevo.orchestrator.member import Member
from relevo.orchestrator.membership import Membership
from relevo.orchestrator.ports import AwaitedLink
from relevo.wire import messages as wire


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


def test_nothing_stays_of_the_incarnations_of_a_worker_that_are_gone() -> None:
    """Red when something is kept for each of them: a worker may crash and be started again for weeks."""
    world = World("u")

    def restarted(epochs: Sequence[int]) -> None:
        for epoch in epochs:
            worker = world.join("u", epoch)
            client = world.ask(f"a{epoch}")
            worker.says_token(f"a{epoch}", 7, FinishReason.LENGTH)
            assert client.ends
            worker.end()
            world.ask(f"b{epoch}").started.end(COMPLETE)  # comes while there is none

    restarted(range(1, 5))
    before = entry_counts(world.placement, world.dispatcher)
    restarted(range(5, 30))
    now = entry_counts(world.placement, world.dispatcher)
    assert not {path: number for path, number in now.items() if number > before[path] and "Router" not in path}


def test_requests_that_wait_for_a_worker_end_when_it_is_removed() -> None:
    """Red when they wait until their time is over, for a worker that will not return."""
    world = World("u", "v")
    workers = {name: world.join(name) for name in ("u", "v")}
    workers["v"].end()
    client = world.ask("a")
    workers["u"].end()
    world.membership.remove(WorkerId("u"))
    assert not client.ends, "v may return"
    world.membership.remove(WorkerId("v"))
    assert client.ends[0].code == "worker_lost", "what went wrong first"
    assert world.is_clean()


def test_a_worker_at_the_address_of_another_gets_nothing() -> None:
    """Red when it is let in: it would grant room in its own name, which no request waits for."""
    world = World("u", "v")
    world.join("u")
    assert not world.membership.connected(WorkerId("v"), Link(world, "u", 1))
    (why,) = [member.why_not_ready for member in world.membership.members if member.worker_id == "v"]
    assert why == "u answers at the address of v; give each its own"


class Reached(Link):
    """A link that is never heard from again."""

    async def receive(self) -> wire.ToGateway:
        return await asyncio.get_running_loop().create_future()


async def connected(world: World, connections: Connections, act: Callable[[], Awaitable[None]]) -> None:
    keeping = asyncio.create_task(connections.run())
    await asyncio.sleep(0)
    await act()
    keeping.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await keeping


async def test_a_member_that_is_removed_while_it_is_reached_gives_its_link_to_no_other() -> None:
    """Another of its name was added meanwhile. Red when both connections are that one's: the end of either ends it."""
    world, links = World(), list[Reached]()
    answers: dict[str, asyncio.Future[None]] = {}

    async def connect(address: str) -> AwaitedLink:
        answers[address] = asyncio.get_running_loop().create_future()
        await answers[address]
        links.append(Reached(world, "u", len(links) + 1))
        return links[-1]

    async def act() -> None:
        for address in ("first", "second"):
            connections.add(Member(WorkerId("u"), "unified", address))
            await asyncio.sleep(0)
            if address == "first":
                connections.remove(WorkerId("u"))
        for address in ("first", "second"):
            answers[address].set_result(None)
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        (member,) = world.membership.members
        assert member.link is links[1] and links[0].is_closed

    connections = Connections(world.membership, connect)
    await connected(world, connections, act)


async def test_an_address_that_is_none_keeps_one_worker_out_and_ends_nothing() -> None:
    """Red when a worker that is added with it ends the connections to all others."""
    world = World()

    async def connect(address: str) -> AwaitedLink:
        if address == "nowhere":
            raise SettingsError("'nowhere' is not an address")
        return Reached(world, address, 1)

    async def act() -> None:
        connections.add(Member(WorkerId("u"), "unified", "u"))
        connections.add(Member(WorkerId("v"), "unified", "nowhere"))
        for _ in range(3):
            await asyncio.sleep(0)
        u, v = world.membership.members
        assert u.link is not None and v.why_not_ready == "'nowhere' is not an address"

    connections = Connections(world.membership, connect)
    await connected(world, connections, act)


def test_a_refusal_is_logged_once_however_often_it_is_tried(caplog: pytest.LogCaptureFixture) -> None:
    """A node that was revoked is tried again twice a second. Another reason is news."""
    members = Membership([Member(WorkerId("one/w"), "unified", "node:one", is_remote=True)])
    for reason in ("one was revoked",) * 5 + ("one does not fit",) * 5:
        members.refused(WorkerId("one/w"), reason)
    assert [each.getMessage() for each in caplog.records] == [
        "one/w refused: one was revoked",
        "one/w refused: one does not fit",
    ]
