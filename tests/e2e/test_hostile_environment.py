"""One server in an environment in which everything is missing, wrong or in the way at once, and asked from there."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest

USER_ID = 54321  # of nobody


def ask(port: int, path: str, body: dict[str, Any] | None = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", data, {"content-type": "application/json"})
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=30) as answer:
        return json.loads(answer.read())


def another_user() -> dict[str, Any]:
    """One without an entry in the table of users, if this one may become it and it may run what is installed here."""
    if os.geteuid() != 0:
        return {}
    user = {"user": USER_ID, "group": USER_ID, "extra_groups": []}
    try:
        subprocess.run([sys.executable, "-c", "import relevo"], cwd="/", check=True, capture_output=True, **user)  # type: ignore[call-overload]
    except (OSError, subprocess.CalledProcessError):
        return {}
    return user


@pytest.mark.parametrize("umask", [0o000, 0o077])
def test_a_server_runs_where_nothing_is_as_usual(tmp_path: Path, umask: int) -> None:
    """No standard streams, home, user name or short TMPDIR; a proxy, and a Kubernetes service called relevo."""
    temporary = tmp_path / ("t" * 110)
    temporary.mkdir()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = {
        "PATH": os.environ["PATH"],
        "TMPDIR": str(temporary),
        "HTTP_PROXY": "http://127.0.0.1:9",
        "http_proxy": "http://127.0.0.1:9",
        "RELEVO_PORT": "tcp://10.0.0.1:8000",
        "RELEVO_SERVICE_HOST": "10.0.0.1",
        "RELEVO_PORT_8000_TCP_PROTO": "tcp",
        "RELEVO_MAX_NUM_SEQS": "",
        "RELEVO_TOPOLOGY": "",
        "RELEVO_ADMIN_KEY": "op",
    }
    flags = ["fake", "--topology", "1p1d", "--port", str(port), "--database-url", "memory"]
    command = [sys.executable, "-P", "-m", "relevo", "serve", *flags]
    user = another_user()
    server = subprocess.Popen(
        ["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", *command], cwd="/", env=environment, umask=umask, **user
    )  # type: ignore[call-overload]
    try:
        deadline = time.monotonic() + 120
        while True:
            with contextlib.suppress(OSError):
                ask(port, "/ready")
                break
            assert server.poll() is None, f"ended with status {server.returncode}"
            assert time.monotonic() < deadline, "not ready in time"
            time.sleep(0.05)
        answer = ask(port, "/v1/completions", {"model": "fake", "prompt": [1, 2, 3], "max_tokens": 5})
        assert answer["usage"]["completion_tokens"] >= 1
        drained = subprocess.run(
            [sys.executable, "-P", "-m", "relevo", "drain", "decode-0", "--url", f"http://127.0.0.1:{port}"],
            cwd="/",
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert drained.returncode == 0, drained.stderr
    finally:
        server.send_signal(signal.SIGTERM)
        status = server.wait(timeout=60)
    assert status == 0
    assert list(temporary.iterdir()) == []
