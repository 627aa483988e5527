"""The way of finished requests to a collector: what it costs the one who puts, what is lost, and how it ends."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from relevo.gateway.tracing.delivery import BatchLimits, Delivery
from relevo.telemetry.limited_log import LimitedLog

WAIT_S = 10.0
SOON = 0.001


@dataclass
class Sink:
    """An exporter. While `goes_on` is not set, it waits."""

    takes: bool = True
    goes_on: threading.Event = field(default_factory=threading.Event)
    is_asked: threading.Event = field(default_factory=threading.Event)
    batches: list[list[str]] = field(default_factory=list)
    fault: Exception | None = None

    def __post_init__(self) -> None:
        self.goes_on.set()

    def export(self, spans: Sequence[str]) -> bool:
        self.is_asked.set()
        assert self.goes_on.wait(WAIT_S)
        if self.fault is not None:
            raise self.fault
        if self.takes:
            self.batches.append(list(spans))
        return self.takes


def three(item: int) -> list[str]:
    return [f"{item}{part}" for part in "abc"]


def delivery_of(sink: Sink, **limits: float) -> Delivery[int, str]:
    return Delivery(three, sink.export, BatchLimits(**limits))  # type: ignore[arg-type]


def test_all_arrives_in_order_and_in_batches_within_their_bound() -> None:
    sink = Sink()
    delivery = delivery_of(sink, max_batch=7, delay_s=SOON)
    for number in range(50):
        assert delivery.put(number)
    assert delivery.close(WAIT_S) == 0
    assert [span for batch in sink.batches for span in batch] == [
        span for number in range(50) for span in three(number)
    ]
    assert max(map(len, sink.batches)) <= 7
    assert delivery.num_dropped() == {"queue_full": 0, "not_taken": 0}


def test_an_item_of_many_spans_is_cut_into_batches() -> None:
    sink = Sink()
    delivery: Delivery[int, str] = Delivery(lambda item: ["x"] * item, sink.export, BatchLimits(max_batch=4))
    delivery.put(10)
    assert delivery.close(WAIT_S) == 0
    assert [len(batch) for batch in sink.batches] == [4, 4, 2]


def test_a_silent_collector_costs_what_does_not_fit_and_that_is_counted() -> None:
    """Red when `put` waits, or the queue grows without bound."""
    sink = Sink()
    sink.goes_on.clear()
    delivery = delivery_of(sink, max_waiting=5, max_batch=3, delay_s=SOON)
    delivery.put(0)
    assert sink.is_asked.wait(WAIT_S)
    kept = [delivery.put(number) for number in range(1, 9)]
    assert kept == [True] * 5 + [False] * 3
    assert delivery.num_dropped() == {"queue_full": 3, "not_taken": 0}
    assert delivery.close(0.0) == 6, "those that wait, and the one that is under way"
    sink.goes_on.set()


def test_heavy_items_take_more_of_the_room() -> None:
    """Red when requests of many prompts are kept by the thousand."""
    sink = Sink()
    sink.goes_on.clear()
    limits = BatchLimits(max_waiting=10, max_batch=3, delay_s=SOON)
    delivery: Delivery[int, str] = Delivery(three, sink.export, limits, weight_of=lambda item: item)
    delivery.put(1)
    assert sink.is_asked.wait(WAIT_S)
    assert [delivery.put(number) for number in (6, 6, 1)] == [True, True, False]
    sink.goes_on.set()
    assert delivery.close(WAIT_S) == 0
    assert len(sink.batches) == 3


def test_what_the_collector_does_not_take_is_counted_by_requests() -> None:
    sink = Sink(takes=False)
    delivery = delivery_of(sink, max_batch=6, delay_s=SOON)
    for number in range(4):
        delivery.put(number)
    assert delivery.close(WAIT_S) == 0
    assert delivery.num_dropped() == {"queue_full": 0, "not_taken": 4}


def test_a_fault_loses_one_batch_and_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    """Red when it ends the thread: then nothing would be delivered any more."""
    sink = Sink(fault=ValueError("broken"))
    limited = LimitedLog(logging.getLogger("relevo.tracing"))
    delivery: Delivery[int, str] = Delivery(three, sink.export, BatchLimits(max_batch=3), limited)
    delivery.put(0)
    delivery.put(1)
    assert delivery.close(WAIT_S) == 0
    assert delivery.num_dropped()["not_taken"] == 2
    assert [record.getMessage() for record in caplog.records] == ["traces could not be sent: ValueError('broken')"]

    def broken(item: int) -> list[str]:
        if item == 1:
            raise ValueError("broken")
        return three(item)

    sink = Sink()
    other: Delivery[int, str] = Delivery(broken, sink.export, BatchLimits(), limited)
    for number in range(3):
        other.put(number)
    assert other.close(WAIT_S) == 0
    assert sink.batches == [[*three(0), *three(2)]]
