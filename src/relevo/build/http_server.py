"""Composition of what lets HTTP connections in: limits from the configuration and from what the system allows."""

from __future__ import annotations

import ipaddress
import logging
import os
import resource
import socket

from starlette.types import ASGIApp

from relevo.build.clock import MonotonicClock
from relevo.build.configs import HttpConfig
from relevo.gateway.http.connection_limiter import ConnectionLimiter, ConnectionMetrics
from relevo.gateway.http.errors import ErrorFormats
from relevo.gateway.http.site import Site
from relevo.policy.http.connections import NUM_RESERVED, ConnectionLimits, trusted_networks

log = logging.getLogger("relevo.http")

MAX_CONNECTIONS = 16_384  # arbitrary: an idle one costs about 10 KiB
NUM_OWN_DESCRIPTORS = 192  # arbitrary: workers, the ledger, other gateways, files
_MAX_DESCRIPTORS = 2**20  # where the system names no limit


def build_limiter(
    config: HttpConfig, app: ASGIApp, error_formats: ErrorFormats, metrics: ConnectionMetrics
) -> ConnectionLimiter:
    limits = connection_limits(config, raise_descriptor_limit())
    root_path = config.root_path.rstrip("/")
    return ConnectionLimiter(app, limits, MonotonicClock(), error_formats, metrics, root_path=root_path)


def build_site(config: HttpConfig, listen_fd: int) -> Site:
    return Site(_is_loopback(listen_fd), config.allowed_hosts, config.allowed_origins)


def _is_loopback(listen_fd: int) -> bool:
    with socket.socket(fileno=os.dup(listen_fd)) as listening:
        address = listening.getsockname()
    return isinstance(address, tuple) and ipaddress.ip_address(address[0].partition("%")[0]).is_loopback


def connection_limits(config: HttpConfig, num_descriptors: int) -> ConnectionLimits:
    """Of a process that may have `num_descriptors` open."""
    room = max(1, num_descriptors - NUM_OWN_DESCRIPTORS - NUM_RESERVED)
    asked = config.max_connections or MAX_CONNECTIONS
    if config.max_connections > room:
        log.warning(
            "--max-connections %d: %d descriptors are allowed and %d are kept for other uses, so it is %d; raise the "
            "limit (ulimit -n)",
            asked, num_descriptors, NUM_OWN_DESCRIPTORS + NUM_RESERVED, room,
        )  # fmt: skip
    num_connections = min(asked, room)
    return ConnectionLimits(
        max_connections=num_connections,
        max_per_address=config.max_connections_per_address or max(1, num_connections // 2),
        header_timeout_s=config.header_timeout_s,
        keep_alive_timeout_s=config.keep_alive_timeout_s,
        stall_timeout_s=config.stall_timeout_s,
        trusted=trusted_networks(config.trusted_proxies),
    )


def raise_descriptor_limit() -> int:
    """To what the system allows this process at most; the limit that holds."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MAX_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, _MAX_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        except (OSError, ValueError):
            return soft
        return wanted
    return _MAX_DESCRIPTORS if soft == resource.RLIM_INFINITY else soft
