"""Addresses and URLs of servers."""

from __future__ import annotations

import pytest

from relevo.build.serve import open_listener
from relevo.core.errors import SettingsError
from relevo.core.urls import check_server_url, server_url


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


@pytest.mark.parametrize("host", ["::1", "[::1]", "127.0.0.1", "localhost"])
def test_both_spellings_of_an_address_can_be_listened_on(host: str) -> None:
    open_listener(host, 0).close()


def test_an_address_that_is_taken_is_named_as_a_url_has_it() -> None:
    with open_listener("::1", 0) as taken, pytest.raises(SettingsError, match=r"\[::1\]:"):
        open_listener("::1", taken.getsockname()[1])
