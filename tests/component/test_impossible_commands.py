"""Commands that cannot work: status 2, one sentence that names what to change, and nothing has started.

In this process; that the real command ends so is shown once, in tests/e2e/test_processes.py.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from relevo.build.serve import plan_serving
from relevo.cli import edge as edge_command
from relevo.cli import run_server
from relevo.cli import serve as serve_command
from relevo.cli.main import main
from relevo.cli.options import make_settings


@pytest.fixture(autouse=True)
def nothing_starts(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    def started(*arguments: object) -> None:
        raise AssertionError("it would have started")

    async def no_process(*arguments: object) -> None:
        raise OSError

    monkeypatch.setattr(run_server, "serving", started)
    monkeypatch.setattr(serve_command, "start_process", no_process)  # it would be ended without a word
    monkeypatch.setattr(edge_command, "run_edge", started)
    monkeypatch.setenv("RELEVO_DATABASE_URL", "memory")
    root, ours = logging.getLogger(), logging.getLogger("relevo")
    before = (list(root.handlers), root.level, ours.level)
    yield
    root.handlers = before[0]
    root.setLevel(before[1])
    ours.setLevel(before[2])


def refused(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], *arguments: str) -> str:
    """What `relevo ARGUMENTS` says before it ends with status 2."""
    monkeypatch.setattr(sys, "argv", ["relevo", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    return capfd.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("fake", "--topology", "3x"), "topology"),
        pytest.param(("smollm2", "--topology", "9p9d"), "cores", marks=pytest.mark.model),
        (("fake", "--port", "99999"), "--port"),
        (("fake", "--port", "many"), "--port"),
        (("fake", "--dtype", "int3"), "--dtype"),
        (("fake", "--block-size", "0"), "--block-size"),
        (("fake", "--decode-block-size", "300"), "--decode-block-size"),
        (("fake", "--topology", "unified", "--decode-block-size", "32"), "use --block-size 32 for all, or a topology"),
        (("fake", "--topology", "1p1d", "--decode-block-size", "32"), "have one size; use --kv-transport tcp"),
        (("fake", "--max-model-len", "9999999"), "--max-model-len"),
        (("fake", "--num-kv-blocks", "4", "--max-model-len", "2048"), "--num-kv-blocks"),
        (("fake", "--max-num-batched-tokens", "8", "--max-num-seqs", "64"), "--max-num-batched-tokens"),
        (("fake", "--kv-cache-memory-bytes", "900GiB"), "--kv-cache-memory-bytes"),
        (("fake", "--host", "no.such.host.invalid"), "--host"),
        (("fake", "--cores", "0,999"), "--cores"),
        (("fake", "--cores", "²"), "--cores"),
        (("fake", "--queue-timeout-s", "inf"), "--queue-timeout-s"),
        (("fake", "--queue-timeout-s", "1e300"), "--queue-timeout-s"),
        (("fake", "--resource-share", "inf"), "--resource-share"),
        (("fake", "--seed", "-1"), "--seed"),
        (("fake", "--seed", str(2**64)), "--seed"),
        (("fake", "--max-body-bytes", "0"), "--max-body-bytes"),
        (("fake", "--served-model-name", ""), "--served-model-name"),
        (("fake", "--tensor-paralel-size", "2"), "--tensor-paralel-size"),
        (("/no/such/model.gguf",), "/no/such/model.gguf"),
        (("fake", "--device", "cuda"), "cuda"),
        (("fake", "--pipeline-parallel-size", "2"), "`fake` has none; name a model, or leave it out"),
        (("fake", "--pipeline-parallel-size", "0"), "--pipeline-parallel-size 0"),
        (("fake", "--tensor-parallel-size", "2"), "`fake` has none; name a model, or leave it out"),
        (("fake", "--tensor-parallel-size", "0"), "--tensor-parallel-size 0"),
        (("fake", "--enable-expert-parallel"), "say how many there are with --tensor-parallel-size"),
        pytest.param(
            ("smollm2", "--pipeline-parallel-size", "31"),
            "more than the 30 layers of the model, and every stage needs one; use at most 30",
            marks=pytest.mark.model,
        ),
    ],
)
def test_settings_that_cannot_work_together(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], arguments: tuple[str, ...], said: str
) -> None:
    assert said in refused(monkeypatch, capfd, "serve", "--port", "0", *arguments)


def test_a_broken_model_file(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF" + b"\x03\x00\x00\x00" + b"\xff" * 64)
    assert "broken.gguf" in refused(monkeypatch, capfd, "serve", "--port", "0", str(broken))


@pytest.mark.parametrize(
    ("prices", "said"),
    [
        ('{"other": {}}', "'fake'"),
        ('{"fake": {"input_cost_per_token": -1, "output_cost_per_token": 0}}', "input_cost_per_token"),
        ("{", "prices"),
    ],
)
def test_prices_that_cannot_be_charged(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path, prices: str, said: str
) -> None:
    path = tmp_path / "prices.json"
    path.write_text(prices)
    told = refused(monkeypatch, capfd, "serve", "fake", "--port", "0", "--prices", str(path))
    assert "--prices" in told and said in told


def test_a_database_that_cannot_be_used(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.delenv("RELEVO_DATABASE_URL")
    (tmp_path / "file").write_text("")
    arguments = ("serve", "fake", "--port", "0", "--data-dir", str(tmp_path / "file"))
    assert "--data-dir" in refused(monkeypatch, capfd, *arguments)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ([], "--region"),
        (["--region", "east"], "NAME=URL"),
        (["--region", "a=http://x", "--region", "a=http://y"], "twice"),
        (["--region", "a=http://x/v1"], "path"),
    ],
)
def test_regions_that_cannot_be(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], flags: list[str], said: str
) -> None:
    assert said in refused(monkeypatch, capfd, "edge", "--port", "0", *flags)


def test_a_drain_where_nobody_answers(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    assert "--url" in refused(monkeypatch, capfd, "drain", "decode-0", "--url", "http://127.0.0.1:9")


@pytest.mark.parametrize("key", ["", " ", "a\n", "clé"])
def test_a_key_that_no_client_can_send(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], key: str
) -> None:
    """Red if such a key locked everybody out, or if it were shown to whoever reads the log."""
    said = refused(monkeypatch, capfd, "serve", "fake", "--api-key", "right", "--api-key", key)
    assert said.startswith("relevo: --api-key: ") and "printable ASCII" in said
    assert "right" not in said and "clé" not in said


@pytest.mark.parametrize("text", ["", " ", ","])
def test_an_empty_list_of_keys_opens_no_server(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], text: str
) -> None:
    """Red if RELEVO_API_KEY=$UNSET served everybody."""
    monkeypatch.setenv("RELEVO_API_KEY", text)
    assert "leave the setting out" in refused(monkeypatch, capfd, "serve", "fake")


@pytest.mark.parametrize("given", ["/x/", "/x", "/"])
def test_a_slash_behind_the_root_path_is_none_of_it(given: str) -> None:
    """Red if it were kept: the server would look for //v1 and find nothing."""
    settings = make_settings({"model": "fake", "root_path": given})
    assert plan_serving(settings).gateway.http.root_path == given.rstrip("/")
