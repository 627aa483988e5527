"""OpenAI's client library with OpenTelemetry's own instrumentation: a whole chat and a streamed one, each in a span.

Run by `traces.py` in an environment of its own. Prints the trace id of each chat.
"""

from __future__ import annotations

from openai import OpenAI
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.instrumentation.httpx import HTTPX2ClientInstrumentor  # type: ignore[import-not-found,unused-ignore]
from opentelemetry.instrumentation.openai_v2 import OpenAIInstrumentor  # type: ignore[import-not-found,unused-ignore]
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

provider = TracerProvider()
provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
trace.set_tracer_provider(provider)
OpenAIInstrumentor().instrument()
HTTPX2ClientInstrumentor().instrument()

client, tracer = OpenAI(), trace.get_tracer("program")
for is_streamed in (False, True):
    with tracer.start_as_current_span("program") as span:
        answer = client.chat.completions.create(
            model="fake", messages=[{"role": "user", "content": "hello"}], max_tokens=5, stream=is_streamed
        )
        if is_streamed:
            assert list(answer)
        print(f"{span.get_span_context().trace_id:032x}")
provider.shutdown()
