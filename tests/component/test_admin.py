"""Who may drain a worker, and where the operator's own key lies.

Red when a key for requests, or no key at all, is enough; when a key is sent to another machine unasked; and when a file
that others could have written is believed.
"""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest
from metered_gateway import NOW_MS, metered
from scripted_gateway import rig, status_of

from relevo.build.operator_key import FILE_NAME, operator_key, read_operator_key
from relevo.cli.http import is_loopback, is_own_listener
from relevo.cli.own_key import NotOwnServer, own_key
from relevo.core.errors import StartError
from relevo.core.role import Role
from relevo.gateway.http.auth import ApiKeys
from relevo.gateway.metering.key_ring import KeyRing

DRAIN = "/admin/drain/w0"
OWN = os.geteuid()


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


@pytest.mark.parametrize(
    ("sent", "status"), [(None, 401), ("sk-tenant", 403), ("op", 202)], ids=["nobody", "a tenant", "the operator"]
)
async def test_only_an_admin_key_gives_roles(sent: str | None, status: int) -> None:
    r = rig(api_keys=ring("op", keys=("sk-tenant",)))
    headers = {} if sent is None else {"authorization": f"Bearer {sent}"}
    answer = await r.post("/admin/role/w0", {"role": "3:1", "reason": "  why\n not "}, **headers)
    assert answer.status_code == status, answer.text
    assert r.generator.roles_given == ([({"w0": Role(3, 1)}, "why not")] if status == 202 else [])


@pytest.mark.parametrize(
    ("path", "body", "status", "said"),
    [
        ("w0", {"role": "decoder"}, 400, "unified"),
        ("w0", {"role": "101:1"}, 400, "100"),
        ("w0", {"role": 3}, 400, "role"),
        ("w0", {}, 400, "role"),
        ("w0", {"role": "decode", "reason": "x" * 501}, 400, "reason"),
        ("w9", {"role": "decode"}, 404, "w9"),
    ],
)
async def test_a_role_that_is_none_is_refused(path: str, body: dict[str, object], status: int, said: str) -> None:
    r = rig(api_keys=ring("op"))
    answer = await r.post(f"/admin/role/{path}", body, authorization="Bearer op")
    assert answer.status_code == status and said in answer.text
    assert not r.generator.roles_given


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
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        assert own_key(f"http://127.0.0.1:{port}", str(tmp_path)) == key
        assert own_key(f"http://[::1]:{port}", str(tmp_path)) == key
        assert own_key(f"http://localhost:{port}", str(tmp_path / "none")) is None
    with pytest.raises(NotOwnServer, match=r"not this user's.*--api-key"):
        own_key(f"http://127.0.0.1:{port}", str(tmp_path))  # who comes there next is not known
    for elsewhere in ("http://10.0.0.1:8000", "http://localhost.example.com", "http://example.com", "nonsense"):
        assert own_key(elsewhere, str(tmp_path)) is None


@pytest.mark.parametrize(
    ("users", "expected"), [((), False), ((OWN,), True), ((0,), True), ((OWN, 0), True), ((OWN + 1,), False),
                            ((OWN, OWN + 1), False)],
)  # fmt: skip
def test_a_port_that_another_user_took_is_sent_no_key(tmp_path: Path, users: tuple[int, ...], expected: bool) -> None:
    """The kernel's table of sockets, as another user's listener would stand in it."""
    lines = ["  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode"]
    lines += [f"   {n}: 0100007F:1F40 00000000:0000 0A 0:0 00:0 0  {user}  0 77 1" for n, user in enumerate(users)]
    lines += [f"   8: 0100007F:1F40 0100007F:C000 01 0:0 00:0 0  {OWN + 2}  0 78 1"]  # a client of ours
    lines += [f"   9: 0100007F:1F41 00000000:0000 0A 0:0 00:0 0  {OWN + 2}  0 79 1"]  # another port
    table = tmp_path / "tcp"
    table.write_text("\n".join(lines) + "\n")
    assert is_own_listener("http://127.0.0.1:8000", (str(table), str(tmp_path / "missing"))) is expected


def test_a_start_that_was_killed_leaves_no_half_of_the_operators_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, "link", killed)
        with pytest.raises(KeyboardInterrupt):
            operator_key(tmp_path)
    assert not (tmp_path / FILE_NAME).exists()

    def no_links(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "link", no_links)
    key = operator_key(tmp_path)
    assert operator_key(tmp_path) == key and [path.name for path in tmp_path.iterdir()] == [FILE_NAME]


@pytest.mark.parametrize(
    ("url", "expected"),
    [("http://127.0.0.1:1", True), ("http://127.9.9.9", True), ("http://localhost/x", True), ("http://[::1]:8", True),
     ("http://127.1:8", True), ("http://2130706433", True), ("http://[::ffff:127.0.0.1]:8", True),
     ("http://LOCALHOST.:8", True), ("http://0.0.0.0:8", True), ("http://[::]:8", True), ("http://[::1%25lo]", True),
     ("http://[fe80::1%25lo]", False), ("http://x.localhost", False), ("http://[::ffff:10.0.0.1]", False),
     ("http://10.0.0.1", False), ("http://127.0.0.1.example.com", False), ("", False)],
)  # fmt: skip
def test_what_is_on_this_machine(url: str, expected: bool) -> None:
    assert is_loopback(url) is expected
