"""Events as Anthropic's clients read them: each has the name of its type. Source: "Streaming Messages"."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

PING = b'event: ping\ndata: {"type":"ping"}\n\n'
PING_S = 10.0  # arbitrary, below 15: clients take a stream for dead after 20 s at the least


def encode_event(payload: Mapping[str, Any]) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (payload["type"].encode(), orjson.dumps(payload))
