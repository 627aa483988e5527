"""HTTP/1.1 as it is spoken at the door: uvicorn's protocol, with two things that its parser does not do.

An offer to change the protocol is declined by answering as if it had not been made (RFC 9110, section 7.8). Java's own
client makes one with every request that is not encrypted (`Upgrade: h2c`); the parser would take it for accepted and
drop the body. And the head of a request is bounded: until it is complete, nobody else counts what has come.
"""

from __future__ import annotations

import re

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MAX_HEAD_BYTES = 2**20  # arbitrary; proxies in front of us allow less
_OFFER = re.compile(rb"\r\n[Uu][Pp][Gg][Rr][Aa][Dd][Ee](?=[ \t]*:)")  # no line of a JSON body begins so
_DECLINED = b"\r\nx-offer"


class DoorProtocol(HttpToolsProtocol):
    """One connection."""

    _is_in_head = False
    _num_head_bytes = 0

    def data_received(self, data: bytes) -> None:
        super().data_received(_OFFER.sub(_DECLINED, data))
        self._num_head_bytes = self._num_head_bytes + len(data) if self._is_in_head else 0
        if self._num_head_bytes > MAX_HEAD_BYTES and not self.transport.is_closing():
            self.send_400_response(f"The headers of this request are larger than {MAX_HEAD_BYTES} bytes; send less.")

    def on_message_begin(self) -> None:
        self._is_in_head = True
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._is_in_head = False
        super().on_headers_complete()
