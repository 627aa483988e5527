"""Links to workers of other boxes that end: requests go on elsewhere, and nothing is released under a writer."""

from __future__ import annotations

from by_hand import Link, World

from relevo.core.ids import WorkerId
from relevo.core.request import FinishReason
from relevo.orchestrator.member import Member
from relevo.wire import messages as wire


def remote(world: World, *names: str) -> dict[str, Link]:
    for name in names:
        world.membership.add(Member(WorkerId(name), "unified", f"node:{name}", is_remote=True))
    return {name: world.join(name, epoch=1 << 16 | 1) for name in names}


def member(world: World, name: str) -> Member:
    return next(each for each in world.membership.members if each.worker_id == name)


def cut(world: World, link: Link) -> None:
    link.is_ended = True
    world.membership.lost(link.hello.worker_id, "the connection was reset")


def test_a_cut_link_moves_its_requests_at_once() -> None:
    world = World()
    links = remote(world, "u", "v")
    client = world.ask("a")
    serving = next(name for name in links if links[name].asked(wire.Submit))
    other = links["v" if serving == "u" else "u"]
    links[serving].says_token("a", 7)
    cut(world, links[serving])
    (submit,) = other.asked(wire.Submit)
    assert submit.samples[0].output_token_ids == [7], "exactly where it was"
    assert not member(world, serving).is_ready
    assert not member(world, serving).is_gone, "its process may live"
    other.says_token("a", 8, FinishReason.LENGTH)
    assert client.tokens == [7, 8]
    assert world.is_clean()


def test_a_worker_waits_for_one_that_may_still_write_until_its_node_is_gone() -> None:
    """Red when a new incarnation's blocks are given out while a cut-off worker may write into the old one's."""
    world = World()
    links = remote(world, "u", "v")
    cut(world, links["u"])
    cut(world, links["v"])
    world.join("v", epoch=2 << 16 | 1)
    assert not member(world, "v").is_ready, "u is cut off and has not answered a fence"
    world.membership.gone(WorkerId("u"), "node gone")
    assert member(world, "v").is_ready
    assert member(world, "u").is_gone


def test_a_cut_worker_is_back_once_it_has_answered_over_a_new_link() -> None:
    world = World()
    links = remote(world, "u", "v")
    cut(world, links["u"])
    again = Link(world, "u", 1 << 16 | 1)
    world.membership.connected(WorkerId("u"), again)
    assert not member(world, "u").is_ready, "its answers are on their way"
    world.run()
    assert member(world, "u").is_ready
    assert not member(world, "u").is_cut
    world.ask("b")
    world.ask("c")
    assert again.asked(wire.Submit) or links["v"].asked(wire.Submit)


def test_another_epoch_says_that_the_old_one_has_let_go() -> None:
    world = World()
    links = remote(world, "u")
    cut(world, links["u"])
    world.join("u", epoch=2 << 16 | 1)
    assert member(world, "u").is_ready


def test_requests_wait_for_a_node_that_is_gone_and_fail_when_it_has_left_for_good() -> None:
    world = World()
    links = remote(world, "u")
    client = world.ask("a")
    assert links["u"].asked(wire.Submit)
    cut(world, links["u"])
    world.membership.gone(WorkerId("u"), "node gone")
    assert not client.ends, "it may come back"
    again = world.join("u", epoch=2 << 16 | 1)
    assert again.asked(wire.Submit)
    world.membership.gone(WorkerId("u"), "node gone", for_good=True)
    assert client.ends
    assert not world.membership.members


def test_a_local_workers_end_is_still_the_end_of_its_process() -> None:
    world = World("u")
    link = world.join("u")
    link.end()
    assert member(world, "u").is_gone
