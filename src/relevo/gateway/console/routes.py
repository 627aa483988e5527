"""The paths of the console's state; their errors look like OpenAI's."""

from __future__ import annotations

import msgspec
from starlette.responses import Response

from relevo.gateway.console.gather import gather
from relevo.gateway.console.state import Viewer
from relevo.gateway.http.call import Call
from relevo.gateway.http.route import Route
from relevo.gateway.openai.errors import OPENAI_ERRORS


async def show_state(call: Call) -> Response:
    """The server's state at this moment, as far as the key that asks may see it."""
    caller = call.caller
    is_open = call.context.api_keys.is_open
    viewer = Viewer(sees_all=caller.is_admin or is_open, is_admin=caller.is_admin, tenant=caller.tenant)
    body = msgspec.json.encode(gather(call.context, viewer))
    return Response(body, media_type="application/json", headers={"cache-control": "no-store"})


CONSOLE_ROUTES = (Route("GET", "/v1/state", show_state, OPENAI_ERRORS),)
