"""Addresses are parsed once and read the same when they are written again. Red for an IPv6 address cut at a colon."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relevo.core.errors import SettingsError
from relevo.core.host_port import HostPort, parse_host_ports

labels = st.from_regex(r"[a-z0-9]([a-z0-9-]{0,10}[a-z0-9])?", fullmatch=True)
names = st.lists(labels, min_size=1, max_size=3).map(".".join).filter(lambda name: not name[-1].isdigit())
literals = st.one_of(
    st.ip_addresses(v=4).map(str),
    st.ip_addresses(v=6).map(str),
    st.tuples(st.ip_addresses(v=6).map(str), st.sampled_from(["eth0", "2", "br-0.5"])).map("%".join),
)


@given(host=st.one_of(names, literals), port=st.integers(0, 65535))
def test_an_address_survives_being_written(host: str, port: int) -> None:
    place = HostPort.parse(f"[{host}]:{port}" if ":" in host else f"{host}:{port}")
    assert (place.host, place.port) == (host, port)
    assert HostPort.parse(str(place)) == place


@given(st.text(max_size=40))
def test_any_text_is_an_address_or_a_sentence(text: str) -> None:
    try:
        place = HostPort.parse(text, "--cluster")
    except SettingsError as error:
        assert error.message.startswith("--cluster ")
    else:
        assert HostPort.parse(str(place)) == place


def test_spellings_of_one_address_are_one() -> None:
    assert HostPort.parse("[FD00:0:0::5]:7000") == HostPort.parse("[fd00::5]:7000")
    assert HostPort.parse("Box-A.example:7000").host == "box-a.example"
    assert HostPort.parse("[::1]", default_port=7000) == HostPort("::1", 7000)
    assert HostPort.parse("box", default_port=7000) == HostPort("box", 7000)
    assert parse_host_ports("a:1,[::1]:2,a:1") == (HostPort("a", 1), HostPort("::1", 2))


def test_what_listens_everywhere_is_no_place_to_connect_to() -> None:
    assert HostPort.parse("0.0.0.0:1").is_wildcard and HostPort.parse("[::]:1").is_wildcard
    assert not HostPort.parse("10.0.0.1:1").is_wildcard


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("fd00::5:7000", "brackets"),
        ("::1", "brackets"),
        ("[fd00::5", "brackets"),
        ("[10.0.0.5]:7000", "brackets"),
        ("[fd00::5]7000", "brackets"),
        ("box", "no port"),
        ("box:", "no port"),
        ("box:seven", "no port"),
        ("box:-1", "no port"),
        ("box:70000", "65535"),
        ("10.0.0.300:1", "neither"),
        ("10.0.0:1", "neither"),
        ("box a:1", "neither"),
        ("http://box:1", "brackets"),
        ("[fe80::1%]:1", "neither"),
        ("", "no port"),
    ],
)
def test_what_is_no_address_is_a_sentence_with_an_example(text: str, says: str) -> None:
    with pytest.raises(SettingsError) as caught:
        HostPort.parse(text, "--cluster")
    assert says in caught.value.message and "10.0.0.5:7000" in caught.value.message
