"""What a trace costs a gateway, in CPU time: of its event loop, and of the thread that makes spans and encodes them.

    PYTHONPATH=tests/policy python tests/harness/trace_costs.py

Of one request with a prompt on one worker and its answer on another (11 spans). Waiting for a collector is not in it.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from told_timelines import ordinary

from relevo.core.outcome import COMPLETE
from relevo.gateway.tracing.open_traces import OpenTraces
from relevo.gateway.tracing.otlp import EnvironmentSampler, SpanMaker
from relevo.policy.tracing.request_spans import spans_of
from relevo.policy.tracing.trace_context import response_headers
from relevo.policy.tracing.words import CallTrace, Generation, PromptTrace

NUM_REQUESTS = 3000
NUM_ROUNDS = 5
BATCH = 46  # requests whose spans fill one batch of 512
HEADERS = [
    *((name, b"x" * 20) for name in (b"host", b"user-agent", b"accept", b"content-type", b"authorization")),
    (b"traceparent", b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
]
TIMELINE = ordinary()
ASKED = Generation(operation="chat", model="m", response_id="chatcmpl-1", is_streamed=True, num_choices=1, max_tokens=9)


def main() -> None:
    ended: list[CallTrace] = []
    traces = OpenTraces(EnvironmentSampler(), ended.append, dict)
    maker = SpanMaker("relevo", "gateway")

    def on_the_loop() -> None:
        call = traces.begin(HEADERS, "POST", "/v1/chat/completions", TIMELINE.accepted_at_ns)
        response_headers(call.own)
        call.generation = ASKED
        prompt = PromptTrace(
            request_id="r",
            timeline=TIMELINE,
            end=COMPLETE,
            num_prompt_tokens=400,
            num_cached_tokens=0,
            num_output_tokens=100,
            finish_reasons=("stop",),
        )
        call.ended_with(COMPLETE, [prompt])
        call.ends_ns, call.status = TIMELINE.ended_at_ns or 0, 200
        traces.end(call)

    def spans() -> None:
        call = ended[0]
        maker.made(call.own, call.parent_id, spans_of(call), 0)

    def encoding() -> None:
        call = ended[0]
        made = maker.made(call.own, call.parent_id, spans_of(call), 0)
        encode_spans(made * BATCH).SerializeToString()

    loop_us, spans_us = cost_us(on_the_loop, NUM_REQUESTS), cost_us(spans, NUM_REQUESTS // 3)
    encoding_us = cost_us(encoding, 10) / BATCH
    print(f"{len(spans_of(ended[0]))} spans; of the event loop {loop_us:.1f} us, of the thread {spans_us:.0f} us for")
    print(f"making them and {encoding_us:.0f} us for encoding: the least of {NUM_ROUNDS} rounds")


def cost_us(act: Callable[[], None], number: int) -> float:
    """CPU time of this thread."""
    rounds = []
    for _ in range(NUM_ROUNDS):
        began_s = time.thread_time()
        for _ in range(number):
            act()
        rounds.append((time.thread_time() - began_s) / number)
    return min(rounds) * 1e6


if __name__ == "__main__":
    main()
