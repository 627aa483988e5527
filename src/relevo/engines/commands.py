"""The command line of an engine that is to take and give token ids, and to hand KV over. Pure."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from relevo.engines.spec import EngineSpec

_VLLM_ROLES = {"prefill": "kv_producer", "decode": "kv_consumer"}


@dataclass(frozen=True, slots=True)
class EngineCommand:
    argv: tuple[str, ...]
    environment: Mapping[str, str]  # beside Relevo's own


def command_of(
    spec: EngineSpec, model: str, max_model_len: int | None, more: Sequence[str], *, side_channel_port: int
) -> EngineCommand:
    """`more`: the operator's own flags, which come last and so win."""
    command = _vllm if spec.engine == "vllm" else _sglang
    argv, environment = command(spec, model, max_model_len, side_channel_port)
    return EngineCommand((*argv, *more), environment)


def _vllm(
    spec: EngineSpec, model: str, max_model_len: int | None, side_channel_port: int
) -> tuple[list[str], dict[str, str]]:
    parts = urlsplit(spec.url)
    argv = ["vllm", "serve", model, "--host", str(parts.hostname), "--port", str(parts.port)]
    argv += ["--served-model-name", spec.served_name, "--tokens-only", "--skip-tokenizer-init"]
    argv += ["--enable-prompt-tokens-details", "--block-size", str(spec.block_size), "--shutdown-timeout", "30"]
    argv += ["--max-model-len", str(max_model_len)] if max_model_len is not None else []
    if spec.role in _VLLM_ROLES:
        transfer = {
            "kv_connector": "NixlConnector",
            "kv_role": _VLLM_ROLES[spec.role],
            "kv_connector_extra_config": {"kv_lease_duration": round(spec.lease_s)},
        }
        argv += ["--kv-transfer-config", json.dumps(transfer)]
    if spec.events:
        events = {"enable_kv_cache_events": True, "publisher": "zmq", **_told_at(spec)}
        argv += ["--kv-events-config", json.dumps(events)]
    environment = {
        "VLLM_NIXL_SIDE_CHANNEL_HOST": str(parts.hostname),
        "VLLM_NIXL_SIDE_CHANNEL_PORT": str(side_channel_port),
        "VLLM_API_KEY": spec.api_key,
    }
    return argv, environment


def _sglang(
    spec: EngineSpec, model: str, max_model_len: int | None, side_channel_port: int
) -> tuple[list[str], dict[str, str]]:
    parts = urlsplit(spec.url)
    argv = [sys.executable, "-P", "-m", "sglang.launch_server", "--model-path", model]
    argv += ["--host", str(parts.hostname), "--port", str(parts.port), "--served-model-name", spec.served_name]
    argv += ["--skip-tokenizer-init", "--page-size", str(spec.block_size), "--api-key", spec.api_key]
    argv += ["--context-length", str(max_model_len)] if max_model_len is not None else []
    if spec.role in _VLLM_ROLES:
        bootstrap_port = spec.bootstrap.rpartition(":")[2]
        argv += ["--disaggregation-mode", spec.role, "--disaggregation-bootstrap-port", bootstrap_port]
    if spec.events:
        argv += ["--kv-events-config", json.dumps({"publisher": "zmq", "topic": "", **_told_at(spec)})]
    environment = {"SGLANG_DISAGGREGATION_BOOTSTRAP_TIMEOUT": "30", "SGLANG_DISAGGREGATION_WAITING_TIMEOUT": "30"}
    return argv, environment


def _told_at(spec: EngineSpec) -> dict[str, str]:
    """Where it tells of its cache. Both engines listen at a TCP address with a star in it only, and dial any other."""
    places = {"endpoint": spec.events, "replay_endpoint": spec.replay}
    return {
        name: f"tcp://*:{place.rpartition(':')[2]}" if place.startswith("tcp:") else place
        for name, place in places.items()
        if place
    }
