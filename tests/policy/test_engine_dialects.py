"""What engines are told of a handoff, dialect by dialect.

Red when a field that an engine asserts on is missing, when two handoffs share a name, or when a clock is trusted that
is not ours.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relevo.policy.handoff.dialects import (
    DIALECTS,
    MOONCAKE,
    NIXL_PULL,
    NS,
    SGLANG_BOOTSTRAP,
    Binding,
    Handoff,
    LeaseClock,
    answer_of,
    cached_tokens_of,
    packed,
    unpacked,
)

BOUND = Binding(engine_id="e1", address="http://10.0.0.2:8998", host="10.0.0.2", port=8998)
ANSWER = {
    "do_remote_prefill": True,
    "do_remote_decode": False,
    "remote_block_ids": [[1, 2]],
    "remote_engine_id": "e1",
    "remote_request_id": "r1",
    "remote_host": "10.0.0.2",
    "remote_port": 5600,
    "tp_size": 1,
    "remote_prefill_cached_tokens": 96,
    "of_a_later_release": [1],
}


def test_pull_passes_the_answer_on_whole() -> None:
    handoff = Handoff(dialect=NIXL_PULL, number=1)
    first = handoff.for_prefill()["kv_transfer_params"]
    assert first["do_remote_decode"] is True
    assert first["do_remote_prefill"] is False
    fields, why = answer_of(NIXL_PULL, {"kv_transfer_params": ANSWER})
    assert not why
    assert handoff.for_decode(fields) == {"kv_transfer_params": ANSWER}
    assert cached_tokens_of(NIXL_PULL, fields) == 96
    assert unpacked(packed(handoff.for_decode(fields))) == {"kv_transfer_params": ANSWER}


@pytest.mark.parametrize("missing", NIXL_PULL.required)
def test_an_answer_that_kills_decode_engines_is_never_passed_on(missing: str) -> None:
    for value in (None, [], ""):
        fields, why = answer_of(NIXL_PULL, {"kv_transfer_params": ANSWER | {missing: value}})
        assert not fields
        assert missing in why


def test_an_engine_without_a_connector_is_told_apart() -> None:
    assert "started with a KV connector" in answer_of(NIXL_PULL, {"kv_transfer_params": None})[1]
    assert "no producer" in answer_of(NIXL_PULL, {"kv_transfer_params": ANSWER | {"do_remote_prefill": False}})[1]


def test_mooncake_names_peer_and_transfer() -> None:
    handoff = Handoff(dialect=MOONCAKE, number=7, binding=BOUND)
    first, second = handoff.for_prefill()["kv_transfer_params"], handoff.for_decode()["kv_transfer_params"]
    assert first == {"do_remote_decode": True, "transfer_id": handoff.name}
    assert second == {
        "do_remote_prefill": True,
        "remote_engine_id": "e1",
        "remote_bootstrap_addr": "http://10.0.0.2:8998",
        "transfer_id": handoff.name,
    }


def test_sglang_sends_one_room_to_both() -> None:
    handoff = Handoff(dialect=SGLANG_BOOTSTRAP, number=2**62 + 3, binding=BOUND)
    fields = {"bootstrap_host": "10.0.0.2", "bootstrap_port": 8998, "bootstrap_room": 2**62 + 3}
    assert handoff.for_prefill() == handoff.for_decode() == fields


@pytest.mark.parametrize("dialect", DIALECTS.values(), ids=DIALECTS)
def test_every_slot_is_filled(dialect: object) -> None:
    handoff = Handoff(dialect=dialect, number=5, binding=BOUND)  # type: ignore[arg-type]
    for fields in (handoff.for_prefill(), handoff.for_decode(ANSWER)):
        assert not any(name in packed(fields).decode() for name in ('"room"', '"answer"', '"peer_host"'))


@given(st.floats(3.0, 3600.0), st.integers(0, 2**62))
def test_a_ticket_ends_before_its_lease_by_a_margin(lease_s: float, answered_at_ns: int) -> None:
    clock = LeaseClock(lease_s=lease_s)
    use_by_ns = clock.use_by_ns(answered_at_ns)
    assert use_by_ns is not None
    left_s = lease_s - (use_by_ns - answered_at_ns) / NS
    assert left_s >= 0.99
    assert use_by_ns > answered_at_ns


def test_what_waits_for_ever_has_no_clock() -> None:
    assert LeaseClock(lease_s=None).use_by_ns(5) is None
