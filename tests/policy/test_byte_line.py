"""Work measured in bytes: what runs at once is bounded, tenants take turns, nothing is stuck or forgotten."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from relevo.policy.http.byte_line import ByteLimits, ByteLine

LIMITS = ByteLimits(max_working_jobs=2, max_working_bytes=100, max_waiting_jobs=4, max_waiting_bytes=200)


def line_with(*jobs: tuple[str, str, int]) -> ByteLine[str]:
    line: ByteLine[str] = ByteLine(LIMITS)
    for name, tenant, num_bytes in jobs:
        assert line.enter(name, tenant, num_bytes) is None
    return line


def test_tenants_take_turns() -> None:
    """Red if one tenant's many texts are all read before another's one."""
    line = line_with(("a1", "a", 80), ("a2", "a", 30), ("b1", "b", 20))
    order = []
    while (job := line.next()) is not None:
        order.append(job)
        line.leave(job)
    assert order == ["a1", "b1", "a2"]


def test_bytes_at_work_are_bounded_and_a_large_text_runs_alone() -> None:
    line = line_with(("small", "", 10), ("huge", "", 190))
    assert (line.next(), line.next()) == ("small", None)
    line.leave("small")
    assert line.next() == "huge"
    assert line.enter("other", "", 1) is None and line.next() is None
    line.leave("huge")
    assert line.next() == "other"


def test_the_line_is_bounded_in_jobs_and_bytes() -> None:
    line = line_with(("first", "", 1000))  # longer than all that may wait, but the only one
    assert "bytes of text would wait" in (line.enter("second", "", 1) or "")
    line = line_with(*[(str(i), "", 1) for i in range(4)])
    assert "4 long texts wait" in (line.enter("fifth", "", 1) or "")


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 150)), max_size=12), st.data())
def test_everything_is_given_back(jobs: list[tuple[str, int]], data: st.DataObject) -> None:
    line: ByteLine[int] = ByteLine(LIMITS)
    held: set[int] = set()
    for number, (tenant, num_bytes) in enumerate(jobs):
        if line.enter(number, tenant, num_bytes) is None:
            held.add(number)
        if data.draw(st.booleans()):
            line.next()
        if held and data.draw(st.booleans()):
            leaving = data.draw(st.sampled_from(sorted(held)))
            held.discard(leaving)
            line.leave(leaving)
            line.leave(leaving)
    for number in held:
        line.leave(number)
    assert (line.num_waiting, line.num_working_bytes, line.num_waiting_bytes, line.next()) == (0, 0, 0, None)


def test_a_tenant_alone_leaves_places_and_bytes_in_line_to_others() -> None:
    for num_bytes in (1, 100):  # places run out first, then bytes
        line: ByteLine[str] = ByteLine(
            ByteLimits(max_working_jobs=1, max_working_bytes=100, max_waiting_jobs=64, max_waiting_bytes=3200)
        )
        refusals = [line.enter(f"a{number}", "a", num_bytes) for number in range(100)]
        num_taken = refusals.index(
            "As many long texts of your keys wait to be read as may wait beside those of others."
        )
        assert num_taken == (56 if num_bytes == 1 else 28)
        assert line.enter("b", "b", num_bytes) is None and line.enter("c", "c", num_bytes) is None
