"""Which transport a pair of workers hands over by. Red when memory that is not shared is computed into, or when blocks
are copied between workers that share it."""

from __future__ import annotations

import pytest

from relevo.core.handoff import KVEndpoint, KVPath, KVSite, Link, Reach
from relevo.policy.routing.kv_path import kv_path, link_between

SHM = KVEndpoint("shm", "shm:here", Reach.ARENA)
PIPE = KVEndpoint("pipe", "pipe:here", Reach.BOX)
TCP = KVEndpoint("tcp", "tcp:here", Reach.NETWORK)
RDMA = KVEndpoint("rdma", "rdma:here", Reach.NETWORK)


def site(box_id: str, arena_id: str, *endpoints: KVEndpoint) -> KVSite:
    return KVSite(box_id=box_id, arena_id=arena_id, endpoints=endpoints)


ALL = (TCP, PIPE, SHM)  # the order of preference is not the order of reach
RECEIVER = site("box", "arena", *ALL)


@pytest.mark.parametrize(
    ("sender", "path"),
    [
        (site("box", "arena", *ALL), KVPath("shm", "shm:here", Link.MEMORY)),
        (site("box", "other", *ALL), KVPath("pipe", "pipe:here", Link.BOX)),
        (site("other", "arena", *ALL), KVPath("tcp", "tcp:here", Link.NETWORK)),  # numbers of two boxes may be equal
        (site("box", "arena", TCP), KVPath("tcp", "tcp:here", Link.BOX)),
        (site("box", "other", TCP), KVPath("tcp", "tcp:here", Link.BOX)),
        (site("box", "other", SHM), None),
        (site("other", "other", SHM, PIPE), None),
        (site("box", "arena", RDMA), None),
        (site("box", "arena"), None),
    ],
)
def test_the_nearest_transport_that_both_have_and_that_reaches(sender: KVSite, path: KVPath | None) -> None:
    assert kv_path(sender, RECEIVER) == path


def test_of_equals_the_receiver_prefers() -> None:
    receiver = site("box", "arena", RDMA, TCP)
    path = kv_path(site("other", "arena", TCP, RDMA), receiver)
    assert path is not None and path.transport == "rdma"


def test_only_shared_memory_is_computed_into() -> None:
    assert {link: KVPath("any", "", link).zero_copy for link in Link} == {
        Link.MEMORY: True,
        Link.BOX: False,
        Link.NETWORK: False,
    }


def test_a_link_is_the_same_in_both_directions() -> None:
    sites = [site("box", "arena"), site("box", "other"), site("far", "arena")]
    assert all(link_between(one, other) == link_between(other, one) for one in sites for other in sites)
    assert [link_between(sites[0], other) for other in sites] == [Link.MEMORY, Link.BOX, Link.NETWORK]
