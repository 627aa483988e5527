"""`make traces`: what OpenTelemetry's instrumentation of OpenAI's client library begins, the server goes on with.

Installs the library and the instrumentation, pinned, outside of .venv; a collector gets the spans of both sides. Prints
each trace; exit status 1 if one of them is not whole.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from stack import stack

from otlp_receiver import Span, check_nesting, http_collector

PINS = (
    "httpx==0.28.1",  # which the instrumentation imports, though the library does not any more
    "openai==3.57.0",
    "opentelemetry-exporter-otlp-proto-http==1.45.2",
    "opentelemetry-instrumentation-httpx==0.66b2",
    "opentelemetry-instrumentation-openai-v2==2.4b0",
    "opentelemetry-sdk==1.45.2",
    "opentelemetry-util-genai==1.0b0",  # the newest that the instrumentation finds its way in
)
CACHE = Path.home() / ".cache/relevo-traces"
EXPECTED = ("program", "chat fake", "POST", "POST /v1/chat/completions", "leg", "prefill", "decode")


def main() -> int:
    python = installed()
    with http_collector() as collector:
        environ = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url, "OTEL_BSP_SCHEDULE_DELAY": "50"}
        with stack("fake", "--topology", "1p1d", "--share-cores", env=environ) as server:
            known = os.environ | environ | {"OPENAI_BASE_URL": f"{server.url}/v1", "OPENAI_API_KEY": "none-needed"}
            program = [python, str(Path(__file__).with_name("traced_client.py"))]
            ended = subprocess.run(program, env=known, capture_output=True, text=True, timeout=120)
            print(ended.stderr, end="")
            if ended.returncode:
                return 1
            asked = ended.stdout.split()
            traces = {spans[0].trace_id: spans for spans in collector.traces(len(asked))}
    found = [is_continued(traces.get(trace_id, [])) for trace_id in asked]
    return 0 if all(found) else 1


def is_continued(spans: list[Span]) -> bool:
    """Prints the trace."""
    check_nesting([span for span in spans if span.service.startswith("relevo")])  # httpx' end with the headers
    names = {span.span_id: span.name for span in spans}
    for span in sorted(spans, key=lambda each: each.begins_ns):
        took_ms = (span.ends_ns - span.begins_ns) / 1e6
        print(f"{span.service:16} {span.name:28} in {names.get(span.parent_id, '-'):28} {took_ms:8.2f} ms")
    print()
    served = [span for span in spans if span.name == "POST /v1/chat/completions"]
    missing = set(EXPECTED) - set(names.values())
    return not missing and len(served) == 1 and names[served[0].parent_id] == "POST"


def installed() -> str:
    """The interpreter beside the packages."""
    python, done = CACHE / "bin/python", CACHE / "installed"
    if not done.exists() or done.read_text() != "\n".join(PINS):
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(CACHE)], check=True)
        pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, *PINS], check=True)
        done.write_text("\n".join(PINS))
    return str(python)


if __name__ == "__main__":
    sys.exit(main())
