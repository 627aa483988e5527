"""GET /v1/nodes and POST /admin/drain-node/NODE: the machines of a cluster, for admins."""

from __future__ import annotations

import msgspec
from starlette.responses import Response

from relevo.core.errors import NoWorker
from relevo.gateway.http.call import Call
from relevo.gateway.http.errors import UnknownPath
from relevo.gateway.http.replies import json_response
from relevo.gateway.operation.admin import check_admin

MAX_BYTES = 4096  # of the body; arbitrary


class DrainNodeFields(msgspec.Struct, kw_only=True):
    for_good: bool = False


async def show_nodes(call: Call) -> Response:
    """Empty where the server belongs to no cluster."""
    check_admin(call)
    cluster = call.context.cluster
    return json_response({"nodes": cluster.nodes() if cluster is not None else []})


async def drain_node(call: Call) -> Response:
    """202 once it was asked: its workers finish what they have, then it leaves. Raises UnknownPath, NoWorker."""
    check_admin(call)
    fields = await call.read(lambda body: call.parse(body or b"{}", DrainNodeFields), MAX_BYTES)
    name, cluster = call.path_rest, call.context.cluster
    if cluster is None or all(node["name"] != name for node in cluster.nodes()):
        raise UnknownPath(f"There is no node {name!r}; GET /v1/nodes names them.")
    if not cluster.drain(name, for_good=fields.for_good):
        raise NoWorker(f"Node {name} cannot be asked at present; try again.", retry_after_s=1.0)
    return json_response({"node": name, "for_good": fields.for_good}, 202)
