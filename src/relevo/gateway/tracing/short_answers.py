"""A collector's answers over HTTP, read as far as answers of collectors go: one that does not end costs no memory.

What the library under the SDK's exporter would read whole, and keep. Imported with the exporter alone.
"""

from __future__ import annotations

import time
from typing import Any

import requests
from requests.adapters import HTTPAdapter

MAX_BYTES = 65_536  # arbitrary: rejected spans with a sentence of why
_MAX_S = 10.0  # arbitrary: for all of it


def session() -> requests.Session:
    made = requests.Session()
    for scheme in ("http://", "https://"):
        made.mount(scheme, _ShortAnswers())
    return made


class _ShortAnswers(HTTPAdapter):
    def send(self, request: requests.PreparedRequest, stream: bool = False, *args: Any, **more: Any) -> Any:
        """Raises ConnectionError for an answer that is longer, or takes longer."""
        response, body, ends_s = super().send(request, True, *args, **more), bytearray(), time.monotonic() + _MAX_S
        for piece in response.iter_content(4096):
            body += piece
            if len(body) > MAX_BYTES or time.monotonic() > ends_s:
                response.close()
                raise requests.exceptions.ConnectionError("the collector's answer does not end")
        response._content, response._content_consumed = bytes(body), True
        return response
