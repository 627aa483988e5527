"""What OpenTelemetry's variables ask for. Source: the specification of the SDK's environment variables."""

from __future__ import annotations

import pytest

from relevo.core.errors import SettingsError
from relevo.policy.tracing.otel_environment import TracesAsked, traces_asked

HERE = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318"}


def asked(**environ: str) -> TracesAsked:
    found = traces_asked(environ)
    assert found is not None
    return found


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"OTEL_SERVICE_NAME": "x", "OTEL_EXPORTER_OTLP_HEADERS": "a=b", "OTEL_TRACES_SAMPLER": "always_on"},
        {"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "http://collector:4318", "OTEL_METRICS_EXPORTER": "otlp"},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": "", "OTEL_TRACES_EXPORTER": "  "},
        {"OTEL_TRACES_EXPORTER": "none"},
        HERE | {"OTEL_TRACES_EXPORTER": "none"},
        HERE | {"OTEL_SDK_DISABLED": "true"},
        HERE | {"OTEL_SDK_DISABLED": " TRUE "},
        {"otel_exporter_otlp_endpoint": "http://collector:4318"},
    ],
)
def test_nothing_is_asked_for(environ: dict[str, str]) -> None:
    assert traces_asked(environ) is None


@pytest.mark.parametrize(
    ("environ", "exporters", "shown"),
    [
        (HERE, ("otlp",), "http://collector:4318/v1/traces (http/protobuf)"),
        (HERE | {"OTEL_SDK_DISABLED": "false"}, ("otlp",), "http://collector:4318/v1/traces (http/protobuf)"),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:1/x/"}, ("otlp",), "http://c:1/x/v1/traces (http/protobuf)"),
        (
            {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "https://c/own"} | HERE,
            ("otlp",),
            "https://c/own (http/protobuf)",
        ),
        ({"OTEL_TRACES_EXPORTER": "otlp"}, ("otlp",), "http://localhost:4318/v1/traces (http/protobuf)"),
        (
            {"OTEL_TRACES_EXPORTER": "otlp", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"},
            ("otlp",),
            "http://localhost:4317 (grpc)",
        ),
        (
            HERE | {"OTEL_EXPORTER_OTLP_PROTOCOL": "http/json", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "grpc"},
            ("otlp",),
            "http://collector:4318 (grpc)",
        ),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "collector:4317", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, ("otlp",),
         "collector:4317 (grpc)"),
        ({"OTEL_TRACES_EXPORTER": "console"}, ("console",), "console"),
        (
            HERE | {"OTEL_TRACES_EXPORTER": "otlp, console,otlp"},
            ("otlp", "console"),
            "http://collector:4318/v1/traces (http/protobuf) and console",
        ),
    ],
)  # fmt: skip
def test_where_traces_go(environ: dict[str, str], exporters: tuple[str, ...], shown: str) -> None:
    found = asked(**environ)
    assert (found.exporters, found.shown) == (exporters, shown)


@pytest.mark.parametrize(
    ("environ", "told"),
    [
        (HERE | {"OTEL_EXPORTER_OTLP_PROTOCOL": "http/json"}, "OTEL_EXPORTER_OTLP_PROTOCOL=http/json"),
        (HERE | {"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "smoke"}, "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL=smoke"),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "collector:4318"}, "OTEL_EXPORTER_OTLP_ENDPOINT"),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "ftp://collector"}, "OTEL_EXPORTER_OTLP_ENDPOINT"),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://"}, "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:99999"}, "OTEL_EXPORTER_OTLP_ENDPOINT"),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://[::1"}, "OTEL_EXPORTER_OTLP_ENDPOINT"),
    ],
)
def test_what_cannot_be_is_said_with_its_variable(environ: dict[str, str], told: str) -> None:
    with pytest.raises(SettingsError, match=told):
        traces_asked(environ)


def test_a_password_in_an_address_is_not_shown() -> None:
    found = asked(OTEL_EXPORTER_OTLP_ENDPOINT="https://user:p4ss@collector:4318?token=s3cret")
    assert found.shown == "https://***@collector:4318/v1/traces (http/protobuf)"
    assert found.secrets == {"user:p4ss@": "***@"}
    with pytest.raises(SettingsError) as refusal:
        asked(OTEL_EXPORTER_OTLP_ENDPOINT="ftp://user:p4ss@collector")
    assert "p4ss" not in str(refusal.value)


def test_bounds_are_the_sdks_and_what_is_no_number_is_left_alone() -> None:
    found = asked(**HERE)
    assert (found.max_waiting, found.max_batch, found.delay_s, found.notes) == (2048, 512, 5.0, ())
    found = asked(
        **HERE,
        OTEL_BSP_MAX_QUEUE_SIZE="9",
        OTEL_BSP_MAX_EXPORT_BATCH_SIZE="-1",
        OTEL_BSP_SCHEDULE_DELAY="9999999999999999999999",
    )
    assert (found.max_waiting, found.max_batch, found.delay_s) == (9, 512, 5.0)
    assert [note.partition("=")[0] for note in found.notes] == [
        "OTEL_BSP_MAX_EXPORT_BATCH_SIZE",
        "OTEL_BSP_SCHEDULE_DELAY",
    ]


@pytest.mark.parametrize(
    ("propagators", "continues"), [("", True), ("baggage, TraceContext", True), ("none", False), ("b3", False)]
)
def test_clients_traces_are_continued_unless_that_is_turned_off(propagators: str, continues: bool) -> None:
    assert asked(**HERE, OTEL_PROPAGATORS=propagators).continues is continues
