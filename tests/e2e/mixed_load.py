"""Load that moves every number of the dashboards: sessions, clients that leave, mistakes, limits, deadlines."""

from __future__ import annotations

import http.client
import json
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from urllib.parse import urlsplit


class MixedLoad:
    """`keys`: of tenants a and b, and one with few tokens per minute."""

    def __init__(self, url: str, keys: tuple[str, str, str]) -> None:
        self.address = urlsplit(url).netloc
        self.keys = keys
        self.statuses: Counter[int] = Counter()
        self._stop = threading.Event()

    @contextmanager
    def running(self) -> Iterator[None]:
        kinds = (self._sessions, self._sessions, self._prompts, self._prompts, self._leavers, self._wrong, self._late)
        threads = [threading.Thread(target=self._loop, args=(kind, n), daemon=True) for n, kind in enumerate(kinds)]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self._stop.set()
            for thread in threads:
                thread.join(timeout=30)

    def _loop(self, kind: object, seed: int) -> None:
        random = Random(seed)
        assert callable(kind)
        while not self._stop.is_set():
            try:
                kind(random)
            except (OSError, http.client.HTTPException):  # a worker's death may close a stream
                self.statuses[0] += 1

    def _post(self, body: object, key: str, read: int | None = None, **headers: str) -> None:
        connection = http.client.HTTPConnection(self.address, timeout=60)
        try:
            sent = body if isinstance(body, bytes) else json.dumps(body).encode()
            named = {name.replace("_", "-"): value for name, value in headers.items()}
            content = {"content-type": "application/json", "authorization": f"Bearer {key}"}
            connection.request("POST", "/v1/completions", sent, content | named)
            answer = connection.getresponse()
            answer.read(read) if read else answer.read()
            self.statuses[answer.status] += 1
        finally:
            connection.close()

    def _tokens(self, random: Random, num: int) -> list[int]:
        return [random.randrange(10, 200) for _ in range(num)]

    def _sessions(self, random: Random) -> None:
        history = self._tokens(random, 100)
        for _ in range(4):
            body = {"model": "fake", "prompt": history, "max_tokens": 16, "ignore_eos": True}
            self._post(body, self.keys[0], x_session_affinity=str(history[:2]))
            history += self._tokens(random, 60)

    def _prompts(self, random: Random) -> None:
        body = {"model": "fake", "prompt": self._tokens(random, 400), "max_tokens": 24, "n": random.choice((1, 2))}
        self._post(body, self.keys[1])
        self._post(body | {"max_tokens": 4}, self.keys[1], x_relevo_class="batch")

    def _leavers(self, random: Random) -> None:
        body = {"model": "fake", "prompt": self._tokens(random, 50), "max_tokens": 400, "stream": True}
        self._post(body | {"ignore_eos": True}, self.keys[0], read=40)

    def _wrong(self, random: Random) -> None:
        self._post(b"{", self.keys[0])
        self._post({"model": "fake", "prompt": "x"}, "no-key-of-ours")
        self._post({"model": "absent", "prompt": "x"}, self.keys[0])
        self._post({"model": "fake", "prompt": self._tokens(random, 100), "max_tokens": 4}, self.keys[2])

    def _late(self, random: Random) -> None:
        body = {"model": "fake", "prompt": self._tokens(random, 500), "max_tokens": 500, "ignore_eos": True}
        self._post(body, self.keys[1], x_request_timeout="0.2")
