"""JSON as a response."""

from __future__ import annotations

from typing import Any

import orjson
from starlette.responses import Response


def json_response(value: Any, status: int = 200) -> Response:
    return Response(orjson.dumps(value), status_code=status, media_type="application/json")
