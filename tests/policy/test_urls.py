"""Addresses and URLs of servers."""

from __future__ import annotations

import socket
from typing import cast

import pytest

from relevo.build.listening import bound_address, open_listener
from relevo.core.errors import SettingsError
from relevo.core.urls import check_server_url, normalise_url, server_url, with_plain_zone


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:80"),
        ("0.0.0.0", "http://127.0.0.1:80"),
        ("::", "http://[::1]:80"),
        ("::1", "http://[::1]:80"),
        ("[::1]", "http://[::1]:80"),
        ("fe80::1%eth0", "http://[fe80::1%25eth0]:80"),
        ("llm.example", "http://llm.example:80"),
    ],
)
def test_what_a_server_listens_on_is_a_url_that_clients_take(host: str, url: str) -> None:
    assert server_url(host, 80) == url
    check_server_url(url, "--url")
    assert server_url(host, 80, scheme="https").startswith("https://")


@pytest.mark.parametrize(
    "url",
    [
        "http://::1:8000",
        "https://fe80::1",
        "ftp://h",
        "http://",
        "http://h:0",
        "http://h:x",
        "http://h:99999",
        "h",
        "http://[::1",
    ],
)
def test_what_no_client_takes_is_refused_with_an_example(url: str) -> None:
    with pytest.raises(SettingsError, match=r"http://\[::1\]:8000"):
        check_server_url(url, "--url")


@pytest.mark.parametrize("host", ["host", "127.0.0.1", "[::1]"])
@pytest.mark.parametrize(
    "spelling", ["{}:8000", "http://{}:8000", "http://{}:8000/", "http://{}:8000/v1", "{}:8000/v1/"]
)
def test_one_server_has_many_spellings(host: str, spelling: str) -> None:
    """Red when a command does not take what `relevo serve` prints."""
    assert normalise_url(spelling.format(host)) == f"http://{host}:8000"


@pytest.mark.parametrize("host", ["192.0.2.1", "2001:db8::1", "fe80::1", "fe80::1%lo"])
def test_an_address_of_another_machine_is_named_as_such(host: str) -> None:
    """Red when it advises another port."""
    with pytest.raises(SettingsError, match=r"cannot be used: .*; --host takes an address of this machine"):
        open_listener(host, 0)


def test_a_link_local_address_keeps_its_interface() -> None:
    """Red when the URL that is printed leaves it away: no client reaches that."""

    class Listener:
        def getsockname(self) -> tuple[str, int, int, int]:
            return "fe80::1", 8000, 0, socket.if_nametoindex("lo")

    assert server_url(*bound_address(cast(socket.socket, Listener()))) == "http://[fe80::1%25lo]:8000"
    assert with_plain_zone("http://[fe80::1%25lo]:8000/a%25b") == "http://[fe80::1%lo]:8000/a%25b"
    assert with_plain_zone("http://h:8000/a%25b") == "http://h:8000/a%25b"
    with open_listener("::1", 0) as listener:
        assert bound_address(listener) == listener.getsockname()[:2]


@pytest.mark.parametrize("host", ["::1", "[::1]", "127.0.0.1", "localhost"])
def test_both_spellings_of_an_address_can_be_listened_on(host: str) -> None:
    open_listener(host, 0).close()


def test_an_address_that_is_taken_is_named_as_a_url_has_it() -> None:
    with open_listener("::1", 0) as taken, pytest.raises(SettingsError, match=r"\[::1\]:"):
        open_listener("::1", taken.getsockname()[1])


@pytest.mark.parametrize(
    "url", ["ftp://name:secret@h", "http://name:secret@", "http://name:secret@h:0", "name:secret@::1"]
)
def test_a_refused_url_is_told_without_its_password(url: str) -> None:
    with pytest.raises(SettingsError) as refusal:
        normalise_url(url)
    assert "secret" not in refusal.value.message


def test_a_name_and_a_password_are_no_part_of_the_address() -> None:
    """Red when their colon is counted as one of an IPv6 address."""
    assert normalise_url("http://name:secret@10.0.0.5:8000/v1") == "http://name:secret@10.0.0.5:8000"
