"""A stream whose worker is gone continues where the same bits come out, as long as there is such a worker."""

from __future__ import annotations

from by_hand import World

from relevo.wire import messages as wire


def classes(world: World, **of: str) -> None:
    for member in world.membership.members:
        member.compute = of[member.worker_id]


def test_a_stream_continues_within_its_class_and_elsewhere_only_without_one() -> None:
    """Red when the router looks at load alone, or loses a stream for which the class has nobody left."""
    world = World("a", "b", "c")
    workers = {name: world.join(name) for name in ("a", "b", "c")}
    client = world.ask("r")
    first = next(name for name in workers if workers[name].asked(wire.Submit))
    alike, other = (name for name in workers if name != first)
    classes(world, **{first: "avx2", alike: "avx2", other: "amx"})
    for number in range(3):  # the one that is alike has more to do
        world.membership.members  # noqa: B018
        world.ask(f"busy{number}")
    workers[first].says_token("r", 1)
    workers[first].end()
    resumed = [
        name for name in (alike, other) if any(m.request.request_id == "r" for m in workers[name].asked(wire.Submit))
    ]
    assert resumed == [alike]
    workers[alike].says_token("r", 2)
    workers[alike].end()
    assert any(m.request.request_id == "r" for m in workers[other].asked(wire.Submit)), "better than no answer"
    assert client.tokens == [1, 2]
