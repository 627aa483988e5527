"""Words of `relevo join` and `relevo serve --cluster` that are wrong whatever a head says. Red when one of them waits
for a head, which may be for ever, or uses up a join token, or is overwritten without a word."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from typer.testing import CliRunner

from relevo.cli.main import make_app
from relevo.cluster.enroller import found_cluster
from relevo.cluster.peer import NodeRole
from relevo.core.errors import StartError


@pytest.fixture
def head() -> Iterator[socket.socket]:
    """Listens, and is to be dialled by nothing."""
    with closing(socket.create_server(("127.0.0.1", 0))) as listening:
        listening.setblocking(False)
        yield listening
        with pytest.raises(BlockingIOError):
            listening.accept()


@pytest.fixture(autouse=True)
def own_process_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for command in ("join", "serve"):
        monkeypatch.setattr(f"relevo.cli.{command}.configure", lambda *_: None)
        monkeypatch.setattr(f"relevo.cli.{command}.be_quiet", lambda *_: None)


@pytest.fixture
def token(tmp_path: Path) -> str:
    path = tmp_path / "token"
    path.write_text(found_cluster(tmp_path / "authority", "a").new_token(role=NodeRole.HEAD).text())
    path.chmod(0o600)
    return str(path)


def sentence(command: str, *words: str) -> str:
    """In an app of its own, so that what a start sets for its process stays there."""
    result = CliRunner().invoke(make_app(command), [command, *words])
    assert isinstance(result.exception, StartError), (result.output, result.exception)
    assert result.exception.message.count("\n") == 0
    return result.exception.message


def place(listening: socket.socket) -> str:
    return f"127.0.0.1:{listening.getsockname()[1]}"


def free_place() -> str:
    with closing(socket.create_server(("127.9.8.7", 0))) as listening:  # an address that no other test uses
        return f"127.9.8.7:{listening.getsockname()[1]}"


num_cores = os.cpu_count() or 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--role", "3x"], "'3x' is not what a box of a cluster can have; use none, auto, unified"),
        (["--role", "hybrid"], "'hybrid' is not what a box"),
        (["--role", "600p"], "more than 512 workers"),
        (["--role", "none"], "--role none: a box joins to lend its workers"),
        (["--role", "0p"], "--role 0p: a box joins to lend its workers"),
        (["--name", "../b"], "--name '../b' cannot be a node's: a name has 1 to 63"),
        (["--listen", "10.0.0.5:70000"], "--listen '10.0.0.5:70000': a port is a number"),
        (["--listen", "127.0.0.1:0"], "127.0.0.1:0 has port 0"),
        (["--advertise", "[::]"], "--advertise [::]:"),
        (["--advertise", "10.0.0.5:0"], "10.0.0.5:0 has port 0"),
        (["--advertise", "a b"], "--advertise 'a b'"),
        (["--kv-port", "x"], "--kv-port 'x' is neither a port nor a range"),
        (["--role", "2p", "--kv-port", "7100"], "--kv-port 7100 has fewer ports than this box has workers (2)"),
        (["--kv-encryption", "maybe"], "--kv-encryption maybe"),
        (["--model", "./not/there"], "--model ./not/there: there is no file or folder"),
        (["--worker", "http://10.0.0.5:1,role=cook,engine=vllm"], "cook"),
        (["--worker", "http://10.0.0.5:1,role=decode,engine=vllm", "--engine", "vllm"], "keep one of the two"),
        (["--worker", "http://10.0.0.5:1,role=decode,engine=vllm,api_key_env=NOT_SET_X"], "has no NOT_SET_X"),
        (["--engine", "tgi"], "--engine tgi"),
        (["--set", f"cores={num_cores + 4000}"], "is not one of the allowed cores"),
        (["--set", "colour=blue"], "--colour blue"),
        (["--set", "cores"], "--set cores has no value"),
        (["--set", "dtype=float32"], "--set dtype=float32: this is equal on all boxes and taken from the head"),
        (["--set", "max-model-len=5"], "--set max_model_len=5: this is equal on all boxes"),
        (["--set", "topology=1p"], "--set topology=1p: a box that joins is told this with --role"),
        (["--set", "cluster=0.0.0.0:1"], "is of `relevo serve`"),
        (["--token-file", "/not/there"], "--token-file /not/there cannot be read"),
        (["--token-file", os.devnull], "is no join token"),
    ],
)
def test_a_wrong_word_of_join_is_told_before_a_head_is_dialled(
    head: socket.socket, token: str, tmp_path: Path, words: list[str], said: str
) -> None:
    own = ["--listen", free_place()] if "--listen" not in words else []
    common = ["--token-file", token, "--cluster-dir", str(tmp_path / "b"), "--name", "b", *own]
    assert said in sentence("join", place(head), *common, *words)


@pytest.mark.parametrize("where", ["0.0.0.0:7000", "[::]:7000", "10.0.0.1:0", "10.0.0.1", "fd00::1:7000", ""])
def test_what_is_no_head_is_told(where: str, token: str) -> None:
    assert sentence("join", where, "--token-file", token, "--name", "b").startswith("HEAD ")


def test_a_port_that_is_taken_and_a_folder_of_a_head_are_told(head: socket.socket, token: str, tmp_path: Path) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        words = ["--token-file", token, "--name", "b", "--cluster-dir", str(tmp_path / "b")]
        assert "cannot listen at" in sentence("join", place(head), *words, "--listen", place(taken))
    of_a_head = sentence("join", place(head), "--listen", free_place(), "--cluster-dir", str(tmp_path / "authority"))
    assert "is enrolled as a head" in of_a_head


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--topology", "3x"], "'3x' is not what a box of a cluster can have"),
        (["--topology", "2d", "--kv-port", "7100"], "--kv-port 7100 has fewer ports"),
        (["--kv-port", "9-8"], "--kv-port '9-8' is neither"),
        (["--advertise", "0.0.0.0"], " is no place that others can connect to"),
        (["--cluster", "127.0.0.1:0"], "127.0.0.1:0 has port 0"),
        (["--join", "0.0.0.0:7000"], "--join 0.0.0.0:7000 is no place to connect to"),
        (["--max-model-len", "0"], "--max-model-len 0"),
        (["--", "--tensor-parallel-size", "2"], "none was asked for"),
        (["--token-file", "/not/there"], "--token-file /not/there cannot be read"),
    ],
)
def test_a_wrong_word_of_a_further_head_uses_up_no_token(
    head: socket.socket, token: str, tmp_path: Path, words: list[str], said: str
) -> None:
    common = ["--token-file", token, "--cluster", free_place(), "--cluster-dir", str(tmp_path / "c")]
    common += ["--port", "0", "--join", place(head), "--database-url", "memory"]
    assert said in sentence("serve", "fake", *common, *words)
