"""What tenants hold: every number comes back to zero, whatever the order of events."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relevo.core.ids import RequestId, WorkerId, WorkerRef
from relevo.core.request import EngineRequest, SamplingParams, ServiceTerms
from relevo.policy.routing.tenant_use import Held, TenantUse
from relevo.policy.worker.stopping import num_least_output_tokens

A, B = WorkerRef(WorkerId("a"), 1), WorkerRef(WorkerId("b"), 1)
EVENTS = st.tuples(st.sampled_from(["decodes", "computes", "started", "end"]), st.sampled_from("xyz"))


def test_a_request_is_counted_where_it_is() -> None:
    use = TenantUse()
    use.decodes(RequestId("x"), "t", A, 3)
    use.computes(RequestId("x"), B, 100)
    assert use.held(A) == {"t": Held(1, 3, 0)} and use.held(B) == {"t": Held(0, 0, 100)}
    assert use.num_unstarted("t") == 1
    use.gave(RequestId("x"), 1)
    assert use.held(B) == {} and use.num_unstarted("t") == 0
    use.decodes(RequestId("x"), "t", B, 3)  # its worker was lost
    assert use.num_unstarted("t") == 0 and use.held(A) == {}
    use.end(RequestId("x"))
    assert use.is_empty


@given(st.lists(EVENTS, max_size=30))
def test_nothing_is_left_when_every_request_has_ended(events: list[tuple[str, str]]) -> None:
    use = TenantUse()
    for event, name in events:
        request_id = RequestId(name)
        if event == "decodes":
            use.decodes(request_id, name, A, 2)
        elif event == "computes":
            use.computes(request_id, B, 7)
        elif event == "started":
            use.gave(request_id, 1)
        else:
            use.end(request_id)
    for name in "xyz":
        use.end(RequestId(name))
    assert use.is_empty


def test_the_tokens_that_a_stream_must_still_give_outlive_its_worker() -> None:
    use = TenantUse()
    use.decodes(RequestId("x"), "t", A, 1, 100)
    use.gave(RequestId("x"), 30)
    use.decodes(RequestId("x"), "t", B, 1, 100)
    assert not use.sent(A) and [sent.num_left_tokens for sent in use.sent(B)] == [70]
    use.gave(RequestId("x"), 90)
    assert [sent.num_left_tokens for sent in use.sent(B)] == [0]


@pytest.mark.parametrize(
    ("sampling", "num_tokens"),
    [
        (SamplingParams(max_tokens=50, seed=0), 0),
        (SamplingParams(max_tokens=50, seed=0, min_tokens=20), 20),
        (SamplingParams(max_tokens=50, seed=0, ignore_eos=True), 50),
        (SamplingParams(max_tokens=50, seed=0, ignore_eos=True, min_tokens=20, stop_token_ids=(5,)), 20),
    ],
)
def test_only_what_a_stream_must_give_is_certain(sampling: SamplingParams, num_tokens: int) -> None:
    request = EngineRequest(request_id=RequestId("x"), prompt_token_ids=(1,), sampling=sampling)
    assert num_least_output_tokens(request) == num_tokens
    assert num_least_output_tokens(replace(request, terms=ServiceTerms(is_batch=True))) == 0
