"""What OpenTelemetry's environment variables ask of this process, before any of its packages is imported. Pure.

Owns whether traces are made at all, by which exporters and in which protocol, and how the destination is shown: without
user and password. The rest of the variables are the SDK's to read. An empty variable is one that is not set.

Source: https://opentelemetry.io/docs/specs/otel/configuration/sdk-environment-variables/, and of the OTLP exporter.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from relevo.core.errors import SettingsError

HTTP, GRPC = "http/protobuf", "grpc"
_DEFAULTS = {HTTP: "http://localhost:4318", GRPC: "http://localhost:4317"}
_TRACES_PATH = "/v1/traces"


@dataclass(frozen=True, slots=True, kw_only=True)
class TracesAsked:
    exporters: tuple[str, ...]  # names in OTEL_TRACES_EXPORTER
    protocol: str  # of the exporter `otlp`
    shown: str  # where they go, for people
    continues: bool = True  # traces of clients
    secrets: dict[str, str] = field(default_factory=dict)  # parts of addresses, and what is shown instead
    max_waiting: int = 2048
    max_batch: int = 512
    delay_s: float = 5.0
    notes: tuple[str, ...] = ()  # what was left alone, and why


def traces_asked(environ: Mapping[str, str]) -> TracesAsked | None:
    """None: no traces. Raises SettingsError."""
    values = {name: text for name, value in environ.items() if name.startswith("OTEL_") and (text := value.strip())}
    if values.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return None
    named = values.get("OTEL_TRACES_EXPORTER")
    address = values.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") or values.get("OTEL_EXPORTER_OTLP_ENDPOINT")
    exporters = tuple(dict.fromkeys(name.strip() for name in (named or "").split(",") if name.strip()))
    if "none" in exporters or not (exporters or address):
        return None
    exporters = exporters or ("otlp",)
    protocol = _protocol(values, exporters)
    endpoint, secrets = _endpoint(values, protocol)
    where = [f"{endpoint} ({protocol})" if name.startswith("otlp") else name for name in exporters]
    notes: list[str] = []
    max_waiting = _number(values, "OTEL_BSP_MAX_QUEUE_SIZE", 2048, notes)
    return TracesAsked(
        exporters=exporters,
        protocol=protocol,
        shown=" and ".join(where),
        continues="tracecontext" in _words(values.get("OTEL_PROPAGATORS", "tracecontext")),
        secrets=secrets,
        max_waiting=max_waiting,
        max_batch=_number(values, "OTEL_BSP_MAX_EXPORT_BATCH_SIZE", 512, notes),
        delay_s=_number(values, "OTEL_BSP_SCHEDULE_DELAY", 5000, notes) / 1e3,
        notes=tuple(notes),
    )


def _protocol(values: Mapping[str, str], exporters: tuple[str, ...]) -> str:
    names = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
    variable = next((name for name in names if name in values), "")
    protocol = values[variable].lower() if variable else HTTP
    if "otlp" in exporters and protocol not in _DEFAULTS:
        raise SettingsError(f"{variable}={values[variable]} is not offered; use {HTTP} or {GRPC}")
    return protocol if "otlp" in exporters else HTTP


def _endpoint(values: Mapping[str, str], protocol: str) -> tuple[str, dict[str, str]]:
    """As it is shown, and what is not."""
    own = values.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
    endpoint = own or values.get("OTEL_EXPORTER_OTLP_ENDPOINT") or _DEFAULTS[protocol]
    variable = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT" if own else "OTEL_EXPORTER_OTLP_ENDPOINT"
    try:
        parts = urlsplit(endpoint)
        is_address = bool(parts.hostname) and parts.scheme in ("http", "https") and parts.port != 0
    except ValueError:
        is_address = False
    if not is_address and (protocol == HTTP or "://" in endpoint):
        raise SettingsError(
            f"{variable} is no http:// or https:// address of a collector, such as {_DEFAULTS[protocol]}"
        )
    user, has_user, _ = parts.netloc.rpartition("@") if is_address else ("", "", "")
    secrets = {f"{user}@": "***@"} if has_user else {}
    for secret, shown in secrets.items():
        endpoint = endpoint.replace(secret, shown)
    endpoint = endpoint.partition("?")[0]
    if protocol == HTTP and not own:
        endpoint = endpoint.rstrip("/") + _TRACES_PATH
    return endpoint, secrets


def _number(values: Mapping[str, str], name: str, default: int, notes: list[str]) -> int:
    """What is not a number above 0 is left alone, as the SDK does."""
    text = values.get(name)
    if text is None:
        return default
    if text.isascii() and text.isdigit() and 0 < int(text[:10]) < 10**9:
        return int(text)
    notes.append(f"{name}={text} is no whole number above 0; {default} is taken")
    return default


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.lower().split(",")]
