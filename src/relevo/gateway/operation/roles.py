"""POST /admin/role/WORKER: an operator gives a worker another role while it runs, with an admin key and no less."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta
from starlette.responses import Response

from relevo.core.errors import InvalidRequest, SettingsError
from relevo.core.role import parse_role
from relevo.gateway.http.call import Call
from relevo.gateway.http.errors import UnknownPath
from relevo.gateway.http.replies import json_response
from relevo.gateway.operation.admin import check_admin

MAX_BYTES = 4096  # of the body; arbitrary


class RoleFields(msgspec.Struct, kw_only=True):
    role: str
    reason: Annotated[str, Meta(max_length=500)] = ""


async def set_role(call: Call) -> Response:
    """202: the worker was told, and takes it up with its next step. Raises NoWorker, UnknownPath, InvalidRequest."""
    check_admin(call)
    fields = await call.read(lambda body: call.parse(body, RoleFields), MAX_BYTES)
    try:
        role = parse_role(fields.role)
    except SettingsError as error:
        raise InvalidRequest(f"{error}.", param="role") from error
    worker_id, reason = call.path_rest, " ".join(fields.reason.split()) or "asked for by an operator"
    for served in call.context.models:
        for worker in served.generator.status().workers:
            if worker.worker_id == worker_id:
                served.generator.set_roles({worker_id: role}, reason)
                return json_response({"worker_id": worker_id, "role": str(role), "before": worker.role}, 202)
    raise UnknownPath(f"There is no worker {worker_id!r}; GET /ready names them.")
