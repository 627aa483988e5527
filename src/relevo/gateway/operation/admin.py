"""POST /admin/drain/WORKER: an operator takes a worker out of rotation, with an admin key and nothing less.

Where a server has no API keys, every client may send requests and none may do this: the operator's own key is in a file
beside the ledger (`build.operator_key`), or named by --admin-key.
"""

from __future__ import annotations

from starlette.responses import Response

from relevo.core.errors import Forbidden, NoWorker, Unauthorized
from relevo.gateway.http.auth import presented_key
from relevo.gateway.http.call import Call
from relevo.gateway.http.errors import UnknownPath
from relevo.gateway.http.replies import json_response

_ADMINS_ONLY = (
    "This takes an admin key: one of --admin-key, one made with 'relevo keys create --admin', or the operator's own in "
    "the file operator-key beside the ledger."
)


def check_admin(call: Call) -> None:
    """Raises Unauthorized without a key, Forbidden with one that is no admin's."""
    if call.caller.is_admin:
        return
    if presented_key(call.request.headers) is None:
        raise Unauthorized(_ADMINS_ONLY)
    raise Forbidden(_ADMINS_ONLY)


async def drain_worker(call: Call) -> Response:
    """202 once the worker has been asked; it comes back under a higher epoch. Raises NoWorker if it is not ready."""
    check_admin(call)
    worker_id = call.path_rest
    for served in call.context.models:
        for worker in served.generator.status().workers:
            if worker.worker_id != worker_id:
                continue
            if not served.generator.drain(worker_id):
                raise NoWorker(f"{worker_id} is not ready; wait until it is.", retry_after_s=1.0)
            return json_response({"worker_id": worker_id, "epoch": worker.epoch}, 202)
    raise UnknownPath(f"There is no worker {worker_id!r}; GET /ready names them.")
