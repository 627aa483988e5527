"""One request through the orchestrator, with nothing but calls and timers."""

from __future__ import annotations

from typing import Any

import pytest
from by_hand import Client, S, World

from relevo.core.events import TokenOutput
from relevo.core.ids import RequestId, WorkerId
from relevo.core.kv import Reservation
from relevo.core.outcome import COMPLETE, Cause, RequestEnd
from relevo.core.request import FinishReason
from relevo.policy.handoff import machine
from relevo.wire import messages as wire


def test_a_request_is_driven_by_calls_alone() -> None:
    """Red when the orchestrator needs an event loop again, or leaves a timer behind."""
    world = World("u")
    worker = world.join("u")
    client = world.ask("a")
    (submit,) = worker.asked(wire.Submit)
    assert submit.request.request_id == "a"
    worker.says_token("a", 5)
    worker.says_token("a", 6, FinishReason.LENGTH)
    assert (client.tokens, client.ends) == ([5, 6], [COMPLETE])
    assert world.is_clean()


def test_a_stream_of_tokens_arms_no_timer_per_token() -> None:
    world = World("u")
    worker = world.join("u")
    world.ask("a")
    worker.says_token("a", 0)
    armed = world.kernel.num_armed
    for number in range(20):
        world.kernel.run(until_ns=world.kernel.now_ns() + S // 10)
        worker.says_token("a", number)
    assert world.kernel.num_armed - armed == 20, "one call per message of the world, none of the dispatcher"


def test_one_timer_serves_every_deadline_of_a_request() -> None:
    """It waits in line for a worker, then for its first token. Red when one deadline takes the place of another."""
    world = World("u")
    worker = world.join("u")
    client = world.ask("a")
    assert worker.asked(wire.Submit)
    world.kernel.run(until_ns=39 * S)
    assert not worker.asked(wire.Abort)
    world.kernel.run(until_ns=41 * S)  # as long as room and the prompt may take
    assert worker.asked(wire.Abort) and not client.ends
    worker.say(wire.Dropped(RequestId("a")))
    assert client.ends[0].code == "worker_failed"
    assert world.is_clean()


def test_what_the_client_needs_no_more_ends_as_what_it_is() -> None:
    """Red when a stop string is taken for a client that left."""
    for end in (COMPLETE, RequestEnd(cause=Cause.CLIENT_GONE)):
        world = World("u")
        worker = world.join("u")
        client = world.ask("a")
        worker.says_token("a", 5)
        client.started.end(end)
        client.started.end(RequestEnd(cause=Cause.CLIENT_GONE))
        assert client.ends == [end] and worker.asked(wire.Abort)
        worker.say(wire.Dropped(RequestId("a")))
        assert world.is_clean()


class Satisfied(Client):
    """Has all it asked for with its first token."""

    def on_output(self, output: TokenOutput) -> None:
        super().on_output(output)
        self.started.end(COMPLETE)


def test_what_a_sink_asks_for_comes_after_what_its_output_came_with() -> None:
    """Red when a worker is given the request after it was told to let go of it, and computes for no client."""
    world = World("d", "p", roles={"d": "decode", "p": "prefill"})
    decode, prefill = world.join("d"), world.join("p")
    client = world.ask("a", Satisfied())
    grant = Reservation(
        request_id=RequestId("a"),
        worker_id=WorkerId("d"),
        epoch=1,
        block_size=4,
        block_ids=(0, 1, 2),
        generations=(0, 0, 0),
        num_hit_tokens=0,
    )
    decode.say(wire.Reserved(grant))
    assert prefill.asked(wire.Prefill)
    prefill.say(wire.PrefillDone(RequestId("a"), 10, 0, 0.0))
    prefill.says_token("a", 5)
    assert [type(message) for message in decode.sent[-2:]] == [wire.StartDecode, wire.Abort]
    assert (client.tokens, client.ends) == ([5], [COMPLETE])
    decode.say(wire.Dropped(RequestId("a")))
    assert world.is_clean()


def test_a_state_machine_that_raises_ends_its_request_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Red when the client waits for ever, or hears of it twice."""
    world = World("u")
    worker = world.join("u")
    client = world.ask("a")

    def broken(*args: Any) -> Any:
        raise ZeroDivisionError("of ours")

    monkeypatch.setattr(machine, "advance", broken)
    worker.says_token("a", 5)
    worker.says_token("a", 6)
    client.started.end(COMPLETE)
    assert [end.code for end in client.ends] == ["internal_error"]
    assert world.is_clean()
