"""Tokens, certificates, renewal and revocation over a real control port. Red when something comes in that was not
invited, or stays in after it was put out."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import stat
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
from cluster_rigs import WORD, Head, Word, running_head, until

from relevo.cluster.enroller import Enroller, another_head, enroller_of, found_cluster
from relevo.cluster.enrolment import Enrol, enrol, enrolment_handlers, renew
from relevo.cluster.identity import NodeIdentity, blind_context
from relevo.cluster.identity_authority import is_genuine
from relevo.cluster.identity_request import new_request
from relevo.cluster.identity_revoked import Revocation
from relevo.cluster.join_token import JoinToken, read_join_token
from relevo.cluster.opening import Opened, Purpose, Refused
from relevo.cluster.peer import NodeRole, PeerRefused, Refusal
from relevo.cluster.stream import open_stream, open_with_context
from relevo.cluster.stream_guard import StreamGuard
from relevo.cluster.stream_server import StreamServer
from relevo.core.errors import SettingsError, StartError, WorkerLost
from relevo.core.host_port import HostPort


@pytest.fixture
async def head(tmp_path: Path) -> AsyncIterator[Head]:
    async with running_head(tmp_path / "head") as running:
        yield running


# ---- joining ---------------------------------------------------------------------------------------------------------


async def test_a_node_joins_and_is_known_by_name_and_role(head: Head, tmp_path: Path) -> None:
    node = await head.join(tmp_path / "b", "b")
    assert (node.name, node.role, node.fingerprint) == ("b", NodeRole.NODE, head.identity.fingerprint)
    stream = await open_stream(head.place, Purpose.PROBE, identity=node, name="head-a", role=NodeRole.HEAD)
    stream.send(Word(7))
    assert await stream.receive(WORD) == Word(7)
    assert [(node.name, node.role) for node in head.enroller.nodes()] == [("head-a", "head"), ("b", "node")]


async def test_keys_are_for_their_user_alone_whatever_the_umask_is(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        async with running_head(tmp_path / "x" / "head") as head:
            await head.join(tmp_path / "b", "b")
    finally:
        os.umask(before)
    for folder in (tmp_path / "x" / "head", tmp_path / "b"):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o600}


async def test_a_token_is_used_once_also_over_a_restart_of_the_head(head: Head, tmp_path: Path) -> None:
    token = head.enroller.new_token()
    await enrol([head.place], token, folder=tmp_path / "b", name="b", role=NodeRole.NODE)
    await head.server.close()
    again = Enroller.load(head.identity.folder)
    assert again is not None
    head.enroller = again
    head.serve()
    with pytest.raises(PeerRefused, match="used already"):
        await enrol([head.place], token, folder=tmp_path / "c", name="c", role=NodeRole.NODE)
    assert head.refused(Refusal.TOKEN) == 1
    assert not (tmp_path / "c" / "node.pem").exists()


async def test_two_at_once_with_one_token_are_one_node(head: Head, tmp_path: Path) -> None:
    token = head.enroller.new_token()
    found = await asyncio.gather(
        *(enrol([head.place], token, folder=tmp_path / name, name=name, role=NodeRole.NODE) for name in "bcdefg"),
        return_exceptions=True,
    )
    assert sum(isinstance(each, NodeIdentity) for each in found) == 1
    assert sum(isinstance(each, PeerRefused) for each in found) == 5


async def test_an_answer_that_was_lost_costs_no_other_token(
    head: Head, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = head.enroller.new_token()
    monkeypatch.setattr("relevo.cluster.identity_request.keep_identity", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        await enrol([head.place], token, folder=tmp_path / "b", name="b", role=NodeRole.NODE)
    monkeypatch.undo()
    assert (await enrol([head.place], token, folder=tmp_path / "b", name="b", role=NodeRole.NODE)).name == "b"
    assert len(head.enroller.nodes()) == 2
    assert not list((tmp_path / "b").glob("joining*"))


async def test_a_reusable_token_lets_several_in_each_of_its_own(head: Head, tmp_path: Path) -> None:
    token = head.enroller.new_token(is_reusable=True)
    nodes = [
        await enrol([head.place], token, folder=tmp_path / name, name=name, role=NodeRole.NODE) for name in ("b", "c")
    ]
    assert len({node.own.enrolment_id for node in nodes}) == 2


async def test_a_name_that_is_taken_is_given_to_another_only_by_an_operator(head: Head, tmp_path: Path) -> None:
    """A token that leaked does not let its finder be a node that is there."""
    first = await head.join(tmp_path / "b", "b")
    with pytest.raises(PeerRefused, match="in the cluster already"):
        await head.join(tmp_path / "other", "b")
    named = head.enroller.new_token(name="b")
    second = await enrol([head.place], named, folder=tmp_path / "new", name="b", role=NodeRole.NODE)
    assert second.own.enrolment_id != first.own.enrolment_id
    with pytest.raises(PeerRefused, match="revoked"):
        await open_stream(head.place, Purpose.PROBE, identity=first)
    (await open_stream(head.place, Purpose.PROBE, identity=second)).close()


async def test_a_node_does_not_become_a_head_by_asking(head: Head, tmp_path: Path) -> None:
    token = head.enroller.new_token()
    with pytest.raises(PeerRefused, match="--role head"):
        await enrol([head.place], token, folder=tmp_path / "b", name="b", role=NodeRole.HEAD)
    other = await head.join(tmp_path / "c", "c", NodeRole.HEAD)
    assert other.role is NodeRole.HEAD


async def test_an_expired_token_is_refused_by_the_heads_clock_and_both_times_are_named(tmp_path: Path) -> None:
    async with running_head(tmp_path / "head") as head:
        token = head.enroller.new_token(ttl_s=1)
        head.enroller._now_s = lambda: time.time() + 3600
        with pytest.raises(PeerRefused, match=r"expired at 20\d\d-\S+Z and this head's clock says 20\d\d-\S+Z"):
            await enrol([head.place], token, folder=tmp_path / "b", name="b", role=NodeRole.NODE)


async def test_nothing_is_told_to_what_is_not_the_authority_of_the_token(head: Head, tmp_path: Path) -> None:
    """Red when a token is sent before the other end has been compared with it."""
    found_cluster(tmp_path / "foreign", "mallory")
    foreign = NodeIdentity.load(tmp_path / "foreign")
    heard: list[bytes] = []

    async def listen(stream: object, _about: bytes) -> None:
        heard.append(b"enrol")

    handlers = enrolment_handlers(foreign, None) | {Purpose.ENROL: listen}
    server = StreamServer(foreign, StreamGuard(foreign), handlers)
    server.listen(HostPort("127.0.0.1", 0))
    with pytest.raises(PeerRefused, match="another cluster than the join token"):
        await enrol([HostPort("127.0.0.1", server.port)], head.enroller.new_token(), folder=tmp_path / "b",
                    name="b", role=NodeRole.NODE)  # fmt: skip
    await server.close()
    assert heard == []


async def test_one_that_lies_about_the_authority_gets_no_token_either(head: Head, tmp_path: Path) -> None:
    """It tells the right certificate, which is no secret, and has no key of a head under it."""
    found_cluster(tmp_path / "foreign", "mallory")
    foreign = NodeIdentity.load(tmp_path / "foreign")
    handlers = enrolment_handlers(foreign, enroller_of(tmp_path / "foreign"))

    async def lie(stream: object, _about: bytes) -> None:
        await enrolment_handlers(head.identity, head.enroller)[Purpose.AUTHORITY](stream, b"")  # type: ignore[arg-type]

    server = StreamServer(foreign, StreamGuard(foreign), handlers | {Purpose.AUTHORITY: lie})
    server.listen(HostPort("127.0.0.1", 0))
    with pytest.raises(PeerRefused, match="not of this cluster"):
        await enrol([HostPort("127.0.0.1", server.port)], head.enroller.new_token(), folder=tmp_path / "b",
                    name="b", role=NodeRole.NODE)  # fmt: skip
    assert foreign.name == "mallory" and server.num_refused.get(Refusal.TOKEN, 0) == 0
    await server.close()


async def test_a_head_without_the_key_says_who_signs(head: Head, tmp_path: Path) -> None:
    second = await head.join(tmp_path / "c", "c", NodeRole.HEAD)
    handlers = enrolment_handlers(second, Enroller.load(second.folder), lambda: [head.place])
    server = StreamServer(second, StreamGuard(second), handlers)
    server.listen(HostPort("127.0.0.1", 0))
    place = HostPort("127.0.0.1", server.port)
    token = head.enroller.new_token()
    node = await enrol([place], token, folder=tmp_path / "b", name="b", role=NodeRole.NODE)
    await renew(node, [place, head.place])
    with pytest.raises(PeerRefused, match="no key of the authority"):
        await renew(node, [place])
    await server.close()


@pytest.mark.parametrize(
    "asked",
    [
        Enrol("", "", "b", "node"),
        Enrol("relevo-join-AAAA", "x", "b", "node"),
        Enrol("{token}", "no request", "b", "node"),
        Enrol("{token}", "{request}", "../b", "node"),
        Enrol("{token}", "{request}", "b", "admin"),
        Enrol("{token}", "{broken}", "b", "node"),
        Enrol("{stranger}", "{request}", "b", "node"),
    ],
)
async def test_an_enrolment_that_is_made_up_is_refused_and_uses_no_token(head: Head, asked: Enrol) -> None:
    token = head.enroller.new_token()
    request = new_request("b").request_pem
    lines = request.splitlines()
    lines[3] = lines[3][::-1]
    words = {
        "{token}": token.text(),
        "{request}": request,
        "{broken}": "\n".join(lines),
        "{stranger}": JoinToken(token.fingerprint, b"g" * 24).text(),
    }
    asked = Enrol(
        words.get(asked.token, asked.token), words.get(asked.request_pem, asked.request_pem), asked.name, asked.role
    )
    stream = await open_with_context(head.place, Purpose.ENROL, context=blind_context(), check=False)
    stream.send(asked)
    answer = await stream.receive(msgspec.msgpack.Decoder(Refused | Opened))
    assert isinstance(answer, Refused) and answer.message
    assert head.enroller.num_open_tokens() == 1
    assert len(head.enroller.nodes()) == 1


# ---- renewal ---------------------------------------------------------------------------------------------------------


async def test_a_certificate_is_renewed_for_a_new_key_and_used_at_the_next_handshake(
    head: Head, tmp_path: Path
) -> None:
    node = await head.join(tmp_path / "b", "b")
    before, key_before = node.own, (node.folder / "node.pem").read_text()
    head.enroller._now_s = lambda: time.time() + 60
    await renew(node, [head.place])
    assert node.own.enrolment_id == before.enrolment_id
    assert node.own.validity.expires_at_s > before.validity.expires_at_s
    assert (node.folder / "node.pem").read_text().split("-----END")[0] != key_before.split("-----END")[0]
    other_process = NodeIdentity.load(node.folder)
    assert other_process.own == node.own
    (await open_stream(head.place, Purpose.PROBE, identity=node)).close()


async def test_what_was_renewed_on_the_disk_counts_from_the_next_connection_on(head: Head, tmp_path: Path) -> None:
    node = await head.join(tmp_path / "b", "b")
    sleeper = NodeIdentity.load(node.folder)
    head.enroller._now_s = lambda: time.time() + 60
    await renew(node, [head.place])
    stream = await open_stream(head.place, Purpose.PROBE, identity=sleeper)
    assert sleeper.own == node.own
    stream.close()


async def test_a_half_written_renewal_leaves_the_certificate_before_in_use(
    head: Head, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    node = await head.join(tmp_path / "b", "b")
    (node.folder / "node.pem").write_bytes(b"-----BEGIN PRIVATE KEY-----\nAAAA")
    (await open_stream(head.place, Purpose.PROBE, identity=node)).close()
    assert "was not renewed" in caplog.text


# ---- revocation ------------------------------------------------------------------------------------------------------


async def test_a_revoked_node_is_out_at_once_on_open_connections_too(head: Head, tmp_path: Path) -> None:
    node = await head.join(tmp_path / "b", "b")
    stream = await open_stream(head.place, Purpose.PROBE, identity=node)
    other = await head.join(tmp_path / "c", "c")
    kept = await open_stream(head.place, Purpose.PROBE, identity=other)
    guarding = asyncio.create_task(head.guard.run())
    Enroller.load(head.identity.folder).revoke("b")  # type: ignore[union-attr]  # by a command, in another process
    with pytest.raises(WorkerLost):
        async with asyncio.timeout(5):
            await stream.receive(WORD)
    with pytest.raises(PeerRefused, match="revoked"):
        await open_stream(head.place, Purpose.PROBE, identity=node)
    with pytest.raises(PeerRefused, match="revoked"):
        await renew(node, [head.place])
    kept.send(Word(1))
    assert await kept.receive(WORD) == Word(1)
    guarding.cancel()
    await until(lambda: head.refused(Refusal.REVOKED) >= 2)


async def test_a_revoked_name_comes_back_with_a_new_token_only(head: Head, tmp_path: Path) -> None:
    token = head.enroller.new_token()
    await enrol([head.place], token, folder=tmp_path / "b", name="b", role=NodeRole.NODE)
    head.enroller.revoke("b")
    with pytest.raises(PeerRefused):
        await enrol([head.place], token, folder=tmp_path / "b", name="b", role=NodeRole.NODE)
    with pytest.raises(SettingsError, match="revoked already"):
        head.enroller.revoke("b")
    again = await head.join(tmp_path / "again", "b")
    (await open_stream(head.place, Purpose.PROBE, identity=again)).close()


async def test_revocations_are_told_by_any_node_and_made_by_the_authority_alone(head: Head, tmp_path: Path) -> None:
    node = await head.join(tmp_path / "b", "b")
    (made,) = head.enroller.revoke("b")
    authority_pem = head.enroller.authority.certificate_pem
    forged = [
        Revocation(head.identity.own.enrolment_id, "head-a", made.revoked_at_s, made.signature),
        Revocation(made.enrolment_id, "b", made.revoked_at_s, ""),
        Revocation(made.enrolment_id, "b", made.revoked_at_s + 1, made.signature),
        Revocation(made.enrolment_id, "b", made.revoked_at_s, "zz"),
    ]
    other = await head.join(tmp_path / "c", "c")
    assert other.revoked.learn(forged, lambda each: is_genuine(each, authority_pem)) == ()
    assert other.revoked.learn([made, made], lambda each: is_genuine(each, authority_pem))
    assert NodeIdentity.load(other.folder).revoked.has(node.own.enrolment_id)
    assert not other.revoked.learn([made], lambda _: True), "known already"


async def test_a_list_that_cannot_be_read_forgets_nothing(head: Head, tmp_path: Path) -> None:
    node = await head.join(tmp_path / "b", "b")
    head.enroller.revoke("b")
    head.identity.refresh()
    (head.identity.folder / "revoked.json").write_text("[")
    head.identity.refresh()
    assert head.identity.revoked.has(node.own.enrolment_id)
    with pytest.raises(StartError, match="damaged"):
        NodeIdentity.load(head.identity.folder)


async def test_any_head_with_the_key_can_revoke_what_it_has_let_in(head: Head, tmp_path: Path) -> None:
    node = await head.join(tmp_path / "b", "b")
    second = await head.join(tmp_path / "c", "c", NodeRole.HEAD)
    (second.folder / "ca.key").write_bytes((head.identity.folder / "ca.key").read_bytes())
    (second.folder / "ca.key").chmod(0o600)
    signer = enroller_of(second.folder)
    with pytest.raises(SettingsError, match="not known"):
        signer.revoke("b")
    signer.note(node.own)
    assert [each.enrolment_id for each in signer.revoke("b")] == [node.own.enrolment_id]


# ---- files -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["", "ca.key", "node.pem", "ca.crt"])
def test_a_folder_or_key_that_others_can_open_is_refused_with_the_command_that_mends_it(
    tmp_path: Path, name: str
) -> None:
    found_cluster(tmp_path / "head", "a")
    (tmp_path / "head" / name).chmod(0o755)
    with pytest.raises(StartError, match=r"chmod [67]00 ") as caught:
        NodeIdentity.load(tmp_path / "head")
        enroller_of(tmp_path / "head")
    assert str(tmp_path / "head" / name).rstrip("/") in caught.value.message


def test_a_key_that_is_a_link_is_refused(tmp_path: Path) -> None:
    found_cluster(tmp_path / "head", "a")
    (tmp_path / "head" / "ca.key").rename(tmp_path / "elsewhere")
    (tmp_path / "head" / "ca.key").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StartError, match="cannot be read"):
        enroller_of(tmp_path / "head")


def test_a_second_cluster_in_one_folder_is_refused_and_the_first_is_whole(tmp_path: Path) -> None:
    first = found_cluster(tmp_path / "head", "a")
    with pytest.raises(SettingsError, match="already"):
        found_cluster(tmp_path / "head", "b")
    assert enroller_of(tmp_path / "head").authority.certificate_pem == first.authority.certificate_pem
    assert NodeIdentity.load(tmp_path / "head").name == "a"


def test_what_is_kept_of_a_token_does_not_let_anything_in(tmp_path: Path) -> None:
    enroller = found_cluster(tmp_path / "head", "a")
    token = enroller.new_token()
    everything = b"".join(path.read_bytes() for path in (tmp_path / "head").iterdir())
    assert token.secret not in everything and token.text().encode() not in everything
    assert token.secret.hex().encode() not in everything
    assert list(json.loads((tmp_path / "head" / "tokens.json").read_bytes())) == [token.digest]


def test_a_folder_moved_to_another_cluster_is_noticed(tmp_path: Path) -> None:
    found_cluster(tmp_path / "one", "a")
    found_cluster(tmp_path / "two", "b")
    (tmp_path / "one" / "ca.crt").write_bytes((tmp_path / "two" / "ca.crt").read_bytes())
    with pytest.raises(StartError, match=r"does not fit ca\.crt"):
        NodeIdentity.load(tmp_path / "one")
    with pytest.raises(StartError, match="not the key"):
        enroller_of(tmp_path / "one")


# ---- the text of a token ---------------------------------------------------------------------------------------------


def test_a_token_comes_from_a_file_or_the_environment_and_is_whole(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    token = JoinToken(b"f" * 32, b"s" * 24, "box.b")
    path = tmp_path / "token"
    path.write_text(token.text() + "\n")
    path.chmod(0o600)
    with caplog.at_level(logging.WARNING):
        assert read_join_token(path, {}) == token
        assert not caplog.records
        path.chmod(0o644)
        assert read_join_token(path, {}) == token
    assert "chmod 600" in caplog.text and token.text() not in caplog.text
    assert read_join_token(None, {"RELEVO_JOIN_TOKEN": token.text()}) == token
    for text in ("", token.text()[:-3], token.text()[:40], token.text().lower(), token.text() + "x", "hunter2"):
        with pytest.raises(SettingsError) as caught:
            read_join_token(None, {"RELEVO_JOIN_TOKEN": text})
        assert not text or text not in caught.value.message
    with pytest.raises(SettingsError, match="--token-file"):
        read_join_token(None, {})
    with pytest.raises(SettingsError, match="cannot be read"):
        read_join_token(tmp_path / "none", {})
    assert "s" * 24 not in repr(token)


def test_a_process_that_only_connects_imports_no_cryptography() -> None:
    """Its import takes as long as the rest of a small process's; ssl does what gateways and workers need."""
    code = (
        "import sys, relevo.cluster.identity, relevo.cluster.moving, relevo.cluster.stream_server;"
        "sys.exit('cryptography' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# ---- more heads ------------------------------------------------------------------------------------------------------


async def test_a_box_that_was_brought_the_authority_is_a_head_and_takes_what_the_first_one_invited(
    tmp_path: Path,
) -> None:
    """As pods of a Deployment are: the same files, each a name and a key of its own."""
    async with running_head(tmp_path / "a") as first:
        token = first.enroller.new_token(is_reusable=True)
        second = tmp_path / "b"
        second.mkdir(mode=0o700)
        for name in ("ca.crt", "ca.key", "tokens.json"):
            (second / name).write_bytes((tmp_path / "a" / name).read_bytes())
            (second / name).chmod(0o600)
        enroller = another_head(second, "head-b")
        identity = NodeIdentity.load(second)
        assert (identity.name, identity.role) == ("head-b", NodeRole.HEAD)
        assert identity.fingerprint == first.identity.fingerprint
        made = new_request("node-c")
        assert "BEGIN CERTIFICATE" in enroller.enrol(token, made.request_pem, "node-c", "node")
        stream = await open_stream(first.place, Purpose.PROBE, identity=identity, name="head-a", role=NodeRole.HEAD)
        stream.send(Word(7))
        assert await stream.receive(WORD) == Word(7)


def test_a_head_without_the_authority_and_one_that_is_a_node_already_are_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir(mode=0o700)
    with pytest.raises(StartError, match=r"no key of the authority"):
        another_head(tmp_path / "empty", "b")
    found_cluster(tmp_path / "a", "a")
    with pytest.raises(SettingsError, match=r"certificate of a node already"):
        another_head(tmp_path / "a", "b")
