"""Who may drain a worker, and where the operator's own key lies.

Red when a key for requests, or no key at all, is enough; when a key is sent to another machine unasked; and when a file
that others could have written is believed.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from metered_gateway import NOW_MS, metered
from scripted_gateway import rig, status_of

from relevo.build.operator_key import FILE_NAME, operator_key, read_operator_key
from relevo.cli.drain import _own_key
from relevo.cli.http import is_loopback
from relevo.core.errors import StartError
from relevo.gateway.auth import ApiKeys
from relevo.gateway.metering.key_ring import KeyRing

DRAIN = "/admin/drain/w0"


def ring(*admin_keys: str, keys: tuple[str, ...] = ()) -> KeyRing:
    return KeyRing(ApiKeys.of(keys), lambda: NOW_MS, admins=ApiKeys.of(admin_keys))


@pytest.mark.parametrize("keys", [(), ("sk-tenant",)], ids=["an open server", "a server with keys"])
@pytest.mark.parametrize(
    ("sent", "status"), [(None, 401), ("sk-tenant", 403), ("sk-wrong", 403), ("", 401), ("op", 202)]
)
async def test_only_an_admin_key_drains(keys: tuple[str, ...], sent: str | None, status: int) -> None:
    r = rig(api_keys=ring("op", keys=keys))
    headers = {} if sent is None else {"authorization": f"Bearer {sent}"}
    answer = await r.post(DRAIN, {}, **headers)
    if keys and sent == "sk-wrong":
        status = 401  # it is no key of anybody's
    assert answer.status_code == status, answer.text
    assert r.generator.drained == (["w0"] if status == 202 else [])


async def test_keys_of_the_database_drain_if_they_are_admins() -> None:
    async with metered() as m:
        plain, _ = await m.make_key()
        admin, _ = await m.make_key(is_admin=True)
        statuses = [(await m.rig.post(DRAIN, {}, authorization=f"Bearer {key}")).status_code for key in (plain, admin)]
        assert statuses == [403, 202]


async def test_what_cannot_be_drained_is_said() -> None:
    r = rig(api_keys=ring("op"))
    unknown = await r.post("/admin/drain/small/w9", {}, authorization="Bearer op")
    assert unknown.status_code == 404 and "small/w9" in unknown.json()["error"]["message"]
    r.generator.engine_status = status_of(ready=False)
    busy = await r.post(DRAIN, {}, authorization="Bearer op")
    assert busy.status_code == 503 and "retry-after" in busy.headers


async def test_an_admin_key_closes_nothing_for_others_and_may_ask_too() -> None:
    r = rig(api_keys=ring("op"))
    assert (await r.get("/v1/models")).status_code == 200
    assert (await r.get("/v1/models", authorization="Bearer op")).status_code == 200


@pytest.mark.parametrize("umask", [0o000, 0o077])
def test_the_operators_key_is_kept_for_this_user_alone(tmp_path: Path, umask: int) -> None:
    former = os.umask(umask)
    try:
        key = operator_key(tmp_path)
    finally:
        os.umask(former)
    assert (tmp_path / FILE_NAME).stat().st_mode & 0o777 == 0o600
    assert operator_key(tmp_path) == read_operator_key(tmp_path) == key and len(key) > 40


def test_a_key_that_others_could_have_written_is_refused(tmp_path: Path) -> None:
    path = tmp_path / FILE_NAME
    path.write_text("known to everybody")
    path.chmod(0o644)
    with pytest.raises(StartError, match="not this user's alone; remove it"):
        operator_key(tmp_path)
    path.unlink()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text("x")
    elsewhere.chmod(0o600)
    path.symlink_to(elsewhere)
    with pytest.raises(StartError):
        operator_key(tmp_path)
    path.unlink()
    path.touch(0o600)
    with pytest.raises(StartError, match="is empty"):
        operator_key(tmp_path)


def test_the_key_of_this_machine_stays_on_it(tmp_path: Path) -> None:
    key = operator_key(tmp_path)
    assert _own_key("http://127.0.0.1:8000", str(tmp_path)) == key
    assert _own_key("http://[::1]:8000", str(tmp_path)) == key
    for elsewhere in ("http://10.0.0.1:8000", "http://localhost.example.com", "http://example.com", "nonsense"):
        assert _own_key(elsewhere, str(tmp_path)) is None
    assert _own_key("http://localhost:8000", str(tmp_path / "none")) is None


@pytest.mark.parametrize(
    ("url", "expected"),
    [("http://127.0.0.1:1", True), ("http://127.9.9.9", True), ("http://localhost/x", True), ("http://[::1]:8", True),
     ("http://10.0.0.1", False), ("http://127.0.0.1.example.com", False), ("", False)],
)  # fmt: skip
def test_what_is_on_this_machine(url: str, expected: bool) -> None:
    assert is_loopback(url) is expected
