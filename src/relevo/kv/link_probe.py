"""What the way to a worker's KV port carries, found out with bytes: at join, and again after a failure.

More than a packet is sent each way, so that a way that loses large packets is found before it loses KV. Needs
the node's keys and no arena: the node process may ask for its workers, over whose network card their KV goes.
"""

from __future__ import annotations

import socket
import time
from dataclasses import dataclass

from relevo.core.errors import ProtocolError
from relevo.core.ids import WorkerRef
from relevo.kv.door import KVDoor
from relevo.kv.transports.tcp_address import connect, split_address
from relevo.kv.transports.tcp_channel import Channel, open_channel
from relevo.kv.transports.tcp_frames import Probe, Probed, receive_frame, send_frame, skip_payload
from relevo.kv.transports.tcp_handshake import StaleTarget
from relevo.kv.transports.tcp_node_handshake import NodeCredentials
from relevo.kv.transports.tcp_receiver import probe_payload
from relevo.kv.transports.tcp_sender import proved

FIRST_BYTES = 1024 * 1024  # each way
_MOST_BYTES = 32 * 1024 * 1024
_ENOUGH_S = 0.05  # a rate from less would be that of the start of a connection
_ENOUGH_ROUND_TRIPS = 20  # arbitrary; likewise: the window grows once in each
_ENOUGH_AT_MOST_S = 0.5  # arbitrary; four times as many bytes as take less still come within a step's time
_NUM_ROUND_TRIPS = 3
_BRIEF_BYTES = 8 * 1024  # each way: several packets, and nothing that a slow way would feel


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkProbe:
    """`failure`: one sentence, with the address; empty: bytes came through, both ways."""

    address: str  # of the receiver's transport
    failure: str = ""
    rate: float = 0.0  # bytes/s to the receiver, of one connection
    rate_back: float = 0.0
    round_trip_s: float = 0.0
    max_segment_bytes: int = 0  # of TCP: the MTU less the headers
    is_encrypted: bool = True

    def __str__(self) -> str:
        if self.failure:
            return self.failure
        how = "encrypted" if self.is_encrypted else "plain"
        return (
            f"{self.rate / 1e9:.2f} GB/s {how}, back {self.rate_back / 1e9:.2f}, "
            f"round trip {self.round_trip_s * 1e3:.2f} ms, segments of {self.max_segment_bytes} bytes"
        )


def probe_link(
    door: KVDoor, address: str, target: WorkerRef, timeout_s: float = 5.0, *, is_brief: bool = False
) -> LinkProbe:
    """Blocks for as long as it takes, `timeout_s` at most for each step: give it a thread. Never raises for what a
    network or a peer does. `is_brief`: whether anything passes, without rates."""
    told, step = address, "a firewall may drop it, or its machine is away"
    try:
        place = split_address(address)
        told = f"{place.host} port {place.port}"
        side = NodeCredentials(door).as_sender(target, place.node)
        with connect(place, timeout_s) as sock:
            step = "it listens, but a handshake does not come through; large packets may get lost on the way (MTU)"
            session = proved(sock, side, timeout_s)
            channel = open_channel(sock, session)
            round_trip_s = min(_exchange(channel, 1, 1) for _ in range(_NUM_ROUND_TRIPS))
            max_segment_bytes = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG)
            if is_brief:
                step = "small messages pass and larger ones do not: large packets get lost on the way (MTU)"
                _exchange(channel, _BRIEF_BYTES, _BRIEF_BYTES)
                return LinkProbe(address=address, round_trip_s=round_trip_s, max_segment_bytes=max_segment_bytes)
            step = "small messages pass and 1 MB does not: large packets get lost on the way (MTU)"
            _exchange(channel, FIRST_BYTES, 1)
            _exchange(channel, 1, FIRST_BYTES)
            return LinkProbe(
                address=address,
                rate=_rate(channel, round_trip_s, is_back=False),
                rate_back=_rate(channel, round_trip_s, is_back=True),
                round_trip_s=round_trip_s,
                max_segment_bytes=max_segment_bytes,
                is_encrypted=session.secrets is not None,
            )
    except TimeoutError:
        return LinkProbe(address=address, failure=f"timed out at {told}: {step}")
    except StaleTarget as error:
        return LinkProbe(address=address, failure=f"at {told}: {error.message}")
    except ProtocolError as error:
        return LinkProbe(address=address, failure=f"refused at {told}: {error.message}")
    except OSError as error:
        return LinkProbe(address=address, failure=f"no connection to {told}: {error.strerror or error}")


def _rate(channel: Channel, round_trip_s: float, *, is_back: bool) -> float:
    num_bytes, enough_s = FIRST_BYTES, max(_ENOUGH_S, min(_ENOUGH_AT_MOST_S, _ENOUGH_ROUND_TRIPS * round_trip_s))
    while True:
        took_s = _exchange(channel, 1, num_bytes) if is_back else _exchange(channel, num_bytes, 1)
        net_s = max(took_s - round_trip_s, took_s / 10)
        if took_s >= enough_s or num_bytes >= _MOST_BYTES:
            return num_bytes / net_s
        num_bytes *= 4


def _exchange(channel: Channel, num_bytes: int, num_answer_bytes: int) -> float:
    started_s = time.perf_counter()
    send_frame(channel, Probe(num_answer_bytes), probe_payload(num_bytes))
    answer, payload_bytes = receive_frame(channel)
    if not isinstance(answer, Probed):
        raise ProtocolError(f"a probe was answered with {type(answer).__name__}")
    skip_payload(channel, payload_bytes)
    return time.perf_counter() - started_s
