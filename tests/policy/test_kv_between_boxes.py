"""What is decided of KV between boxes: whether it is encrypted, how much is under way, which links have become slow."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relevo.core.errors import SettingsError
from relevo.policy.host.kv_encryption import ASSUMED_INTERFACE, KVEncryption, SendingRates, choose_encryption
from relevo.policy.routing.link_pace import FIRST_FRAME_BYTES, LinkPace
from relevo.policy.routing.link_rates import MIN_BYTES, LinkRates

FAST, SLOW = SendingRates(plain=3e9, encrypted=1.2e9), SendingRates(plain=1e9, encrypted=0.2e9)
positive = st.floats(1e6, 1e11)


def test_encryption_is_on_where_it_costs_little_and_asked_for_where_not() -> None:
    assert choose_encryption(KVEncryption.AUTO, FAST, 1).encrypts
    with pytest.raises(SettingsError, match="--kv-encryption off"):
        choose_encryption(KVEncryption.AUTO, SLOW, 1)
    assert choose_encryption(KVEncryption.ON, SLOW, 1).encrypts
    off = choose_encryption(KVEncryption.OFF, FAST, 1)
    assert not off.encrypts
    assert "read or change" in off.told


@given(positive, positive, st.sampled_from([0.0, 1.25e8, 1.25e10]), st.integers(1, 16))
def test_auto_never_leaves_bytes_plain(plain: float, encrypted: float, interface: float, num_cores: int) -> None:
    """Red if a measurement could turn encryption off: only a person does."""
    rates = SendingRates(plain=plain, encrypted=encrypted, interface=interface)
    try:
        assert choose_encryption(KVEncryption.AUTO, rates, num_cores).encrypts
    except SettingsError:
        assert encrypted * num_cores < 0.8 * min(plain * num_cores, interface or ASSUMED_INTERFACE)


@given(st.floats(1e4, 1e10), st.integers(1, 40))
def test_what_is_under_way_follows_the_rate(rate: float, num_frames: int) -> None:
    """Red if a slow link is handed megabytes that an abort has to wait for, or a fast one is kept waiting."""
    pace = LinkPace(4 << 20, 32 << 20)
    assert pace.frame_bytes == FIRST_FRAME_BYTES
    now_s = 5.0
    for _ in range(num_frames):
        num_bytes = pace.frame_bytes
        pace.begins(now_s)
        now_s += num_bytes / rate
        pace.acknowledged(num_bytes, now_s, is_last=True)
    assert pace.rate == pytest.approx(rate, rel=1e-3)
    assert 1 <= pace.in_flight_bytes <= max(1, min(32 << 20, rate * 0.2501))
    assert 1 <= pace.frame_bytes <= max(1, min(4 << 20, rate * 0.0501))


def test_a_pair_that_has_become_slow_is_named_and_one_that_moved_little_is_not() -> None:
    rates: LinkRates[str] = LinkRates()
    rates.measured("p-d", 1e9)
    rates.measured("p-e", 1e9)
    for _ in range(20):
        rates.moved("p-d", 10 * MIN_BYTES, 10 * MIN_BYTES / 1.5e8)
        rates.moved("p-e", MIN_BYTES - 1, 60.0)  # a small transfer says nothing of a link
        rates.moved("p-f", 10 * MIN_BYTES, 10 * MIN_BYTES / 1e9)
    assert list(rates.slow()) == ["p-d"]
    now, before = rates.slow()["p-d"]
    assert now == pytest.approx(1.5e8, rel=0.1)
    assert before == 1e9
    assert rates.rate("p-f") == pytest.approx(1e9)
    rates.measured("p-d", 1.4e8)
    assert not rates.slow()
    rates.forget("p-f")
    assert rates.rate("p-f") == 0.0


def test_of_two_measurements_the_better_counts() -> None:
    """Red when a start is refused for a moment in which a neighbour computed."""
    disturbed = SendingRates(plain=2e9, encrypted=0.9e9)
    undisturbed = SendingRates(plain=3e9, encrypted=1.2e9)
    assert not disturbed.suffice(1)
    assert disturbed.best_with(undisturbed) == undisturbed.best_with(disturbed) == undisturbed
    assert undisturbed.suffice(1)
    assert disturbed.suffice(2), "streams on two cores"
