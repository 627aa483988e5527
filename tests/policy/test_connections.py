"""The table of connections against a plain model of it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from relevo.policy.http.connections import (
    NUM_RESERVED,
    ConnectionLimits,
    ConnectionTable,
    Refusal,
    Verdict,
    Wait,
    trusted_networks,
)

LIMITS = ConnectionLimits(
    max_connections=3,
    max_per_address=2,
    header_timeout_s=2,
    keep_alive_timeout_s=5,
    stall_timeout_s=3,
    trusted=trusted_networks(("10.0.0.0/8", "fd00::1")),
)
ADDRESSES = ("1.1.1.1", "2.2.2.2", "10.1.2.3", "")


def table() -> ConnectionTable[int]:
    return ConnectionTable(LIMITS, lambda connection, wait: 0)


def test_one_network_of_ipv6_is_one_client_and_proxies_are_not_bounded() -> None:
    connections = table()  # none of which is idle
    assert connections.admit(1, "2001:db8::1") == (Verdict.KEEP, None)
    assert connections.admit(2, "2001:db8::2%eth0") == (Verdict.KEEP, None)
    assert connections.admit(3, "2001:db8::ffff:3") == (Refusal.ADDRESS, None)
    assert connections.admit(3, "2001:db8:0:1::3") == (Verdict.KEEP, None)
    for key in range(4, 20):
        assert connections.admit(key, ("10.9.9.9", "fd00::1", "", "/run/x")[key % 4])[0] is Verdict.RESERVE


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("admit"), st.sampled_from(ADDRESSES)),
            st.tuples(st.just("close"), st.integers(0, 20)),
            st.tuples(st.just("begin"), st.integers(0, 20), st.sampled_from(Wait)),
            st.tuples(st.just("end"), st.integers(0, 20), st.sampled_from(Wait)),
            st.tuples(st.just("pass"), st.floats(0, 4)),
        ),
        max_size=60,
    )
)
def test_counts_and_deadlines_are_those_of_a_plain_list(steps: list[tuple[object, ...]]) -> None:
    """Red if a closed connection were counted or named, a late one forgotten, or a bound passed."""
    connections, now_ns, next_key = table(), 0, 0
    addresses: dict[int, str] = {}
    owed: dict[tuple[int, Wait], int] = {}

    def forget(key: int) -> None:
        connections.close(key)
        addresses.pop(key, None)
        for known in [each for each in owed if each[0] == key]:
            del owed[known]

    for step in steps:
        match step:
            case ("admit", str(address)):
                verdict, given_up = connections.admit(next_key, address)
                is_bounded = address not in ("", "10.1.2.3")
                is_most = is_bounded and list(addresses.values()).count(address) == LIMITS.max_per_address
                idle = [
                    key
                    for (key, wait) in owed
                    if wait in (Wait.HEAD, Wait.NEXT, Wait.LEAVE) and (not is_most or addresses[key] == address)
                ]
                if is_most and not idle:
                    assert (verdict, given_up) == (Refusal.ADDRESS, None)
                else:
                    is_full = is_most or len(addresses) >= LIMITS.max_connections
                    assert (given_up in idle) if is_full and idle else given_up is None
                    assert verdict is (Verdict.RESERVE if is_full and not idle else Verdict.KEEP)
                    addresses[next_key] = address
                    if given_up is not None:
                        forget(given_up)
                    next_key += 1
            case ("close", int(key)):
                forget(key)
            case ("begin", int(key), Wait() as wait):
                connections.begin(key, wait, now_ns)
                if key in addresses:
                    owed[key, wait] = now_ns + int(LIMITS.wait_s(wait) * 1e9)
            case ("end", int(key), Wait() as wait):
                connections.end(key, wait)
                owed.pop((key, wait), None)
            case ("pass", float(seconds)):
                now_ns += int(seconds * 1e9)
                late = connections.late(now_ns)
                expected = {each for each, deadline_ns in owed.items() if deadline_ns <= now_ns}
                assert len(late) == len(expected) and set(late) == expected
                for each in expected:
                    del owed[each]
        assert len(connections) == len(addresses) <= LIMITS.max_connections + NUM_RESERVED
