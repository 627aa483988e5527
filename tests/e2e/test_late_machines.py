"""A box and its head that come one after the other, and a head that then stands still: probes tell the two apart.

Red when a box whose head is late ends, or counts as dead; when the first 200 of /ready comes before a token can be had
by this very path, or is taken back; and when the silence of a peer shows in the liveness of the other one.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

from loopback_boxes import command, free_port, get, until
from stack import descendants


def complete(port: int) -> str:
    body = json.dumps({"model": "fake", "prompt": "the first one", "max_tokens": 3, "temperature": 0}).encode()
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/completions", data=body, headers={"content-type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        return str(json.load(answer)["choices"][0]["finish_reason"])


def test_who_is_late_is_waited_for_and_who_is_silent_takes_no_one_along(tmp_path: Path) -> None:
    relevo = [sys.executable, "-m", "relevo", "cluster"]
    founding = [*relevo, "init", "--dir", "A", "--name", "a", "--out", "token"]
    subprocess.run(founding, cwd=tmp_path, check=True, capture_output=True)
    http, control, other, probe, head_probe = (free_port() for _ in range(5))
    head = ("serve", "fake", "--topology", "none", "--cluster", f"127.0.0.1:{control}", "--cluster-dir", "A",
            "--port", str(http), "--data-dir", "data-a", "--probe-port", str(head_probe))  # fmt: skip
    node = ("join", f"127.0.0.1:{control}", "--token-file", "token", "--cluster-dir", "B", "--name", "b",
            "--listen", f"127.0.0.1:{other}", "--role", "unified", "--data-dir", "data-b",
            "--probe-port", str(probe))  # fmt: skip
    log = tmp_path / "b.log"
    with command(tmp_path, "b.log", *node) as joining:
        until(lambda: "waiting for a head" in log.read_text(), tmp_path, "it says that it waits")
        until(lambda: get(probe, "/live")[0] == 200, tmp_path, "alive while it waits")
        status, said = get(probe, "/ready")
        assert (status, said["reason"]) == (503, f"not ready: a head at 127.0.0.1:{control}")
        assert joining.poll() is None
        with command(tmp_path, "a.log", *head) as serving:
            seen: list[int] = []

            def is_ready() -> bool:
                seen.append(get(http, "/ready")[0])
                return seen[-1] == 200

            until(is_ready, tmp_path, "ready for requests")
            assert complete(http) == "length", "the first 200 was said before a token could be had"
            for _ in range(50):
                assert get(http, "/ready")[0] == 200, "it was taken back"
            assert set(seen[:-1]) <= {0, 503}
            until(lambda: get(probe, "/ready")[0] == 200, tmp_path, "the box is ready")
            processes = [serving.pid, *descendants(serving.pid)]
            try:
                for pid in processes:
                    signal_to(pid, signal.SIGSTOP)
                until(lambda: "no head answers" in log.read_text(), tmp_path, "it has noticed that its head is silent")
                assert get(probe, "/live")[0] == 200
                assert get(probe, "/ready")[0] == 200, "its own processes are ready, whoever else is not"
            finally:
                for pid in processes:
                    signal_to(pid, signal.SIGCONT)
            until(lambda: get(http, "/ready")[0] == 200, tmp_path, "back together")
            assert complete(http) == "length"
            joining.send_signal(signal.SIGSTOP)
            for pid in descendants(joining.pid):
                signal_to(pid, signal.SIGSTOP)
            try:
                until(lambda: get(http, "/ready")[0] == 503, tmp_path, "the head has noticed that its node is silent")
                assert get(head_probe, "/live")[0] == 200
            finally:
                for pid in [joining.pid, *descendants(joining.pid)]:
                    signal_to(pid, signal.SIGCONT)
            until(lambda: get(http, "/ready")[0] == 200, tmp_path, "back together")
            assert complete(http) == "length"


def signal_to(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def test_a_box_that_cannot_join_ends_with_a_status_and_a_last_line_that_says_why(tmp_path: Path) -> None:
    """Red when a mistake of the operator is retried for ever, or its reason is not the last that is said: that is what
    becomes the termination message of a pod."""
    (tmp_path / "token").write_text("no token at all")
    (tmp_path / "token").chmod(0o600)
    common = ("--cluster-dir", "B", "--name", "b", "--data-dir", "data-b")
    place = f"127.0.0.1:{free_port()}"
    for arguments, words in (
        ((place, "--token-file", "token", *common), "token"),
        ((place, "--token-file", "missing", *common), "missing"),
        ((place, *common), "token"),
        (("a:b:c:d", "--token-file", "token", *common), "a:b:c:d"),
    ):
        ended = subprocess.run(
            [sys.executable, "-m", "relevo", "join", *arguments],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert ended.returncode == 2, ended
        last = ended.stderr.strip().splitlines()[-1]
        assert words in last and "Traceback" not in ended.stderr, ended.stderr
