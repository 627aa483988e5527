"""Whether a node can be reached at the address that it gives: seen by the head before it is let in. asyncio."""

from __future__ import annotations

from relevo.cluster.identity import NodeIdentity
from relevo.cluster.opening import Purpose
from relevo.cluster.stream import open_stream
from relevo.core.errors import RelevoError
from relevo.core.host_port import HostPort

DIAL_BACK_S = 2.0  # arbitrary; less than a lease


async def why_unreachable(identity: NodeIdentity, place: HostPort, name: str) -> str | None:
    """None: it answers there."""
    try:
        stream = await open_stream(place, Purpose.PROBE, identity=identity, name=name, timeout_s=DIAL_BACK_S)
    except (OSError, RelevoError) as error:
        why = error.message if isinstance(error, RelevoError) else str(error)
        return f"{name} cannot be dialled back at {place} ({why}); see --advertise and the firewall"
    stream.close("it answers")
    return None
