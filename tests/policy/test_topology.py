"""Topologies and the cores they get."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relevo.core.errors import SettingsError
from relevo.policy.host.topology import Topology, assign_cores, choose_topology, parse_topology, share_cores


@pytest.mark.parametrize(
    ("text", "topology"),
    [
        ("unified", Topology(num_unified=1)),
        ("1p1d", Topology(num_prefill=1, num_decode=1)),
        ("12p3d", Topology(num_prefill=12, num_decode=3)),
    ],
)
def test_a_topology_reads_as_it_is_written(text: str, topology: Topology) -> None:
    assert parse_topology(text) == topology
    assert str(topology) == text
    assert len(topology.worker_roles()) == topology.num_workers


@pytest.mark.parametrize("text", ["", "auto", "1p", "p1d", "1p1d ", "1d1p", "1P1D", "-1p1d", "unified2", "1p1d1u"])
def test_other_words_are_refused_with_those_that_are_known(text: str) -> None:
    with pytest.raises(SettingsError, match="auto, unified, hybrid, or NpMd"):
        parse_topology(text)


@pytest.mark.parametrize(("text", "missing"), [("0p1d", "prefill"), ("2p0d", "decode")])
def test_a_phase_nobody_serves_is_refused(text: str, missing: str) -> None:
    with pytest.raises(SettingsError, match=f"no {missing} worker"):
        parse_topology(text)


def test_more_workers_than_a_machine_serves_are_refused() -> None:
    assert parse_topology("256p256d").num_workers == 512
    with pytest.raises(SettingsError, match="more than 512 workers"):
        parse_topology("9999p1d")


def test_worker_ids_are_unique_and_carry_the_role() -> None:
    roles = parse_topology("2p1d").worker_roles()
    assert roles == (("prefill-0", "prefill"), ("prefill-1", "prefill"), ("decode-0", "decode"))


@pytest.mark.parametrize(
    ("num_cores", "num_devices", "expected", "said"),
    [
        (1, 0, "unified", "one core"),
        (2, 0, "hybrid", "2 cores: a worker with fewer than 4 computes as long as it reads"),
        (7, 0, "hybrid", "both workers do both"),
        (8, 0, "1p1d", "8 cores: a prompt never delays"),
        (64, 0, "1p1d", "64 cores"),
        (64, 1, "unified", "one device"),
        (1, 2, "1p1d", "2 devices"),
    ],
)
def test_auto_follows_what_can_be_shared_out_and_says_so(
    num_cores: int, num_devices: int, expected: str, said: str
) -> None:
    topology, reason = choose_topology(num_cores, num_devices)
    assert str(topology) == expected
    assert said in reason


def test_the_remainder_goes_to_prefill() -> None:
    assert assign_cores([0, 1, 2], parse_topology("1p1d")) == [[0, 1], [2]]
    assert assign_cores([4, 5, 6, 7, 8], parse_topology("2p1d")) == [[4, 5], [6, 7], [8]]
    assert assign_cores([0, 1, 2], parse_topology("unified")) == [[0, 1, 2]]


@given(
    cores=st.lists(st.integers(0, 255), unique=True, min_size=1, max_size=64),
    num_prefill=st.integers(1, 6),
    num_decode=st.integers(1, 6),
)
def test_cores_are_shared_out_without_rest_or_overlap(cores: list[int], num_prefill: int, num_decode: int) -> None:
    topology = Topology(num_prefill=num_prefill, num_decode=num_decode)
    if len(cores) < topology.num_workers:
        with pytest.raises(SettingsError, match=r"--cores .* --topology (unified|hybrid|1p1d)$"):
            assign_cores(cores, topology)
        return
    assigned = assign_cores(cores, topology)
    assert [core for part in assigned for core in part] == cores
    assert all(assigned)
    decode_sizes = {len(part) for part in assigned[num_prefill:]}
    assert len(decode_sizes) == 1
    assert max(decode_sizes) <= min(len(part) for part in assigned[:num_prefill])


def test_too_few_cores_names_both_numbers_and_the_way_out() -> None:
    with pytest.raises(SettingsError, match="2p2d starts 4 workers, but they may use only 3 cores"):
        assign_cores([0, 1, 2], parse_topology("2p2d"))
    with pytest.raises(SettingsError, match=r"only 1 core and .* --topology unified"):
        assign_cores([0], parse_topology("1p1d"))


def test_workers_may_share_cores_if_asked() -> None:
    assert assign_cores([3, 5], parse_topology("2p1d"), may_share=True) == [[3], [5], [3]]
    assert assign_cores([3, 5], parse_topology("1p1d"), may_share=True) == [[3], [5]]


def shared(num_cores: int, weights: list[float], minimums: list[int], *, may_share: bool = False) -> list[list[int]]:
    names = [f"model-{index}" for index in range(len(weights))]
    return share_cores(range(num_cores), weights=weights, minimums=minimums, names=names, may_share=may_share)


def test_models_share_cores_by_weight_after_one_for_each_worker() -> None:
    assert shared(8, [1, 1], [2, 2]) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert shared(8, [3, 1], [2, 1]) == [[0, 1, 2, 3, 4, 5], [6, 7]]
    assert shared(5, [1, 1], [1, 1]) == [[0, 1, 2], [3, 4]], "the first of equals gets what is left"
    assert shared(4, [100, 1], [1, 3]) == [[0], [1, 2, 3]], "workers come before weights"
    assert shared(3, [1], [9]) == [[0, 1, 2]], "whether they are enough is for its topology to say"


@given(
    num_spare=st.integers(0, 40),
    models=st.lists(st.tuples(st.floats(0.1, 10), st.integers(1, 4)), min_size=2, max_size=5),
)
def test_shared_cores_are_all_used_once_and_follow_the_weights(num_spare: int, models: list[tuple[float, int]]) -> None:
    """Red when a core is lost or given twice, or when a model gets one that another has a greater claim to."""
    weights, minimums = [weight for weight, _ in models], [minimum for _, minimum in models]
    num_cores = sum(minimums) + num_spare
    parts = shared(num_cores, weights, minimums)
    assert [core for part in parts for core in part] == list(range(num_cores))
    for i, minimum in enumerate(minimums):
        assert len(parts[i]) >= minimum
        if len(parts[i]) > minimum:  # nobody would have less for its weight with that core
            assert all(
                (len(parts[i]) - 1) / weights[i] <= len(part) / w for part, w in zip(parts, weights, strict=True)
            )


def test_too_few_cores_for_all_models() -> None:
    with pytest.raises(SettingsError, match=r"3 workers \(model-0 2, model-1 1\), but they may use only 2 cores"):
        shared(2, [1, 1], [2, 1])
    assert shared(2, [1, 1, 1], [1, 1, 2], may_share=True) == [[0, 1], [1, 0], [0, 1]], "each begins where others end"
