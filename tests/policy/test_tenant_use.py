"""What tenants hold: every number comes back to zero, whatever the order of events."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from relevo.core.ids import RequestId, WorkerId, WorkerRef
from relevo.policy.tenant_use import Held, TenantUse

A, B = WorkerRef(WorkerId("a"), 1), WorkerRef(WorkerId("b"), 1)
EVENTS = st.tuples(st.sampled_from(["decodes", "computes", "started", "end"]), st.sampled_from("xyz"))


def test_a_request_is_counted_where_it_is() -> None:
    use = TenantUse()
    use.decodes(RequestId("x"), "t", A, 3)
    use.computes(RequestId("x"), B, 100)
    assert use.held(A) == {"t": Held(1, 3, 0)} and use.held(B) == {"t": Held(0, 0, 100)}
    assert use.num_unstarted("t") == 1
    use.started(RequestId("x"))
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
            use.started(request_id)
        else:
            use.end(request_id)
    for name in "xyz":
        use.end(RequestId(name))
    assert use.is_empty
