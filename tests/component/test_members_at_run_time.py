"""Workers that join and are removed while requests run."""

from __future__ import annotations

from by_hand import Link, World

from relevo.core.ids import WorkerId
from relevo.core.outcome import COMPLETE
from relevo.core.request import FinishReason
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
