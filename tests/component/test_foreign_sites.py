"""Pages of other sites at a server without keys on a loopback address."""

from __future__ import annotations

import pytest
from scripted_gateway import rig, says

from relevo.gateway.http.auth import ApiKeys
from relevo.gateway.http.site import Site

LOCAL = Site(is_local=True)
BODY = {"prompt": "hi"}


@pytest.mark.parametrize(
    "host",
    ["localhost", "LOCALHOST:8000", "a.localhost", "localhost.", "127.0.0.1:1", "127.9.9.9", "[::1]:8000", "10.0.0.5"],
)
async def test_names_of_this_machine_and_addresses_are_taken(host: str) -> None:
    """Red if a client on this machine, or behind a forwarded port, were refused."""
    answer = await rig(says("x"), site=LOCAL).post("/v1/completions", BODY, host=host)
    assert answer.status_code == 200, answer.text


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8000", "localhost.evil.example", "127.0.0.1.nip.io", ""]
)
@pytest.mark.parametrize("path", ["/v1/models", "/metrics", "/ready", "/"])
async def test_a_name_that_others_can_point_here_is_refused(host: str, path: str) -> None:
    """Red if a page could read a server without keys once its own name points at this machine (DNS rebinding)."""
    answer = await rig(site=LOCAL).get(path, host=host)
    assert answer.status_code == 403 and answer.json()["error"]["code"] == "foreign_site"
    assert "--allowed-hosts" in answer.json()["error"]["message"]


@pytest.mark.parametrize("content_type", ["application/json", "text/plain", "application/x-www-form-urlencoded", None])
@pytest.mark.parametrize(
    "origin", ["https://evil.example", "null", "http://203.0.113.7", "http://[", "chrome-extension://x"]
)
async def test_a_page_of_another_site_cannot_make_it_work(origin: str, content_type: str | None) -> None:
    """Red if a page could send what needs no leave of the browser: a form, or text without a type."""
    headers = {"host": "localhost:8000", "origin": origin} | ({"content-type": content_type} if content_type else {})
    r = rig(says("x"), site=LOCAL)
    async with r.client() as client:
        answer = await client.post("/v1/completions", content=b'{"prompt": "hi"}', headers=headers)
    assert answer.status_code == 403 and "--allowed-origins" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("site", "host", "origin"),
    [
        (LOCAL, "localhost:8000", "http://localhost:3000"),
        (LOCAL, "10.0.0.5:8000", "http://10.0.0.5:8000"),
        (Site(is_local=True, allowed_hosts=("Chat.example",)), "chat.example", "https://chat.example"),
        (Site(is_local=True, allowed_hosts=("*",)), "evil.example", "https://evil.example"),
        (Site(is_local=True, allowed_origins=("https://app.example",)), "localhost", "https://app.example"),
        (Site(is_local=True, allowed_origins=("*",)), "localhost", "null"),
        (Site(is_local=False), "llm.internal", "https://app.example"),
    ],
)
async def test_what_the_operator_named_is_taken_and_nothing_is_checked_where_others_may_come(
    site: Site, host: str, origin: str
) -> None:
    answer = await rig(says("x"), site=site).post("/v1/completions", BODY, host=host, origin=origin)
    assert answer.status_code == 200, answer.text


async def test_where_a_key_is_asked_for_no_name_is() -> None:
    """Red if a proxy that passes on its own name needed a setting although it brings keys."""
    headers = {"host": "chat.example", "origin": "https://app.example", "authorization": "Bearer k"}
    answer = await rig(says("x"), site=LOCAL, api_keys=ApiKeys.of(["k"])).post("/v1/completions", BODY, **headers)
    assert answer.status_code == 200, answer.text
