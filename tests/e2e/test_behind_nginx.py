"""Streams behind nginx with its defaults, which gathers what an upstream says and ends what is silent.

Red when tokens come in lumps at the end, or when a stream that waits for its first token is cut.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from stack import stack

pytestmark = pytest.mark.skipif(shutil.which("nginx") is None, reason="needs nginx: apt-get install nginx-light")

READ_TIMEOUT_S = 2  # of the proxy, where its default is 60
CONFIGURATION = """
daemon off; master_process off; pid {folder}/nginx.pid; error_log {folder}/error.log;
events {{}}
http {{
  access_log off;
  client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
  server {{ listen 127.0.0.1:{port}; location / {{ proxy_pass {url}; proxy_read_timeout {timeout_s}s; }} }}
}}
"""


@contextlib.contextmanager
def nginx(folder: Path, url: str) -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = int(free.getsockname()[1])
    path = folder / "nginx.conf"
    path.write_text(CONFIGURATION.format(folder=folder, port=port, url=url, timeout_s=READ_TIMEOUT_S))
    process = subprocess.Popen(["nginx", "-c", str(path), "-p", str(folder)])
    try:
        deadline_s = time.monotonic() + 30
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
                break
            assert process.poll() is None and time.monotonic() < deadline_s, "nginx does not listen"
            time.sleep(0.02)
        yield port
    finally:
        process.terminate()
        process.wait(30)


def streamed(port: int, name: str, num_words: int, max_tokens: int) -> http.client.HTTPResponse:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    body = {"prompt": "word " * num_words, "max_tokens": max_tokens, "stream": True, "ignore_eos": True}
    head = {"content-type": "application/json", "x-request-id": name}
    connection.request("POST", "/v1/completions", json.dumps({"model": "fake", **body}), head)
    answer = connection.getresponse()
    assert answer.status == 200
    return answer


def tokens(answer: http.client.HTTPResponse) -> Iterator[dict[str, Any]]:
    while line := answer.readline():
        if line.startswith(b"data: {"):
            yield json.loads(line[6:])


def test_tokens_come_one_by_one_and_silence_is_no_end(tmp_path: Path) -> None:
    slow = {"RELEVO_FAKE_BASE_S": "0.02", "RELEVO_FAKE_PER_TOKEN_S": "0.0015", "RELEVO_SSE_KEEPALIVE_S": "0.5"}
    flags = (
        "--topology",
        "unified",
        "--max-model-len",
        "8192",
        "--num-kv-blocks",
        "1024",
        "--max-prefill-tokens",
        "4096",
    )
    with stack("fake", *flags, env=slow) as running, nginx(tmp_path, running.url) as port:
        events = tokens(streamed(port, "one-by-one", 4, 250))  # of five seconds
        assert not next(events).get("error")
        assert running.get("/v1/requests/one-by-one")["state"] == "running", "the first token came with the last"
        late = streamed(port, "silent", 600, 4)  # its prompt takes twice as long as the proxy waits
        told = list(tokens(late))
        assert not [each for each in told if "error" in each]
        assert told[-1]["choices"][0]["finish_reason"] == "length"
        assert running.get("/v1/requests/silent")["ttft_s"] > READ_TIMEOUT_S, "it was not silent for long enough"
        assert not [each for each in events if "error" in each]
