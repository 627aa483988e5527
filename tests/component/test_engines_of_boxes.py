"""Engines that are not ours on boxes of a cluster: what their nodes tell, and what gateways make of it.

Red when an engine of a node that is gone is still asked, when one that comes back is not used again, when what a node
tells can reach into a gateway's environment, or when its key is shown to operators.
"""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest
from engine_stack import EngineStack, engine_stack, prompt_of, request_for, until
from fake_engines import FakeVLLM, continuation

from relevo.build.engine_links import EngineLinks
from relevo.build.engines import started_at
from relevo.build.remote_members import RemoteMembers
from relevo.cluster.feed_messages import ROSTER, Roster
from relevo.cluster.member_messages import FROM_NODE, Workers
from relevo.cluster.own_workers import OwnWorkers
from relevo.core.cluster import NodeEngine, NodeReport, RemoteWorker, shown_engines
from relevo.core.errors import SettingsError
from relevo.engines.commands import command_of
from relevo.engines.spec import EngineSpec, packed_spec, parse_engines, unpacked_spec

SPEC = EngineSpec(
    worker_id="b/unified-0",
    url="http://10.0.0.2:8000",
    role="unified",
    engine="vllm",
    dialect="nixl-pull",
    block_size=4,
)


class LinksOf(EngineLinks):
    """With the pool and the links of a stack."""

    def __init__(self, stack: EngineStack) -> None:
        self._pool, self._openers = stack.pool, stack.openers


class NodeB:
    """A node with one engine, as rosters tell of it."""

    def __init__(self, stack: EngineStack, url: str) -> None:
        links = LinksOf(stack)
        self.members = RemoteMembers(stack.membership, stack.connections, stack.placement, links)
        told = replace(SPEC, url=url, vocab_size=997, served_name="tiny")
        self.engine = NodeEngine(worker_id=SPEC.worker_id, role="unified", spec=packed_spec(told))
        self.number = 0

    def told(self, *, session: int = 1, is_here: bool = True, is_leaving: bool = False) -> None:
        engine = replace(self.engine, is_leaving=is_leaving)
        worker = RemoteWorker(
            worker_id=SPEC.worker_id,
            role="unified",
            node="b",
            address=f"node:b 1 {session} 10.0.0.2:7000 {SPEC.worker_id}",
            is_here=is_here,
            reason="" if is_here else "node b: gone",
            engine=engine,
        )
        self.take((worker,), (NodeReport(name="b", role="node", state="joined", epoch=1, since_unix_s=0.0),))

    def take(self, workers: tuple[RemoteWorker, ...], nodes: tuple[NodeReport, ...]) -> None:
        self.number += 1
        roster = Roster(self.number, True, workers, nodes)
        self.members.take(ROSTER.decode(msgspec.msgpack.encode(roster)))  # as it comes over the socket


async def answers_are_right(stack: EngineStack, first: int, count: int = 6) -> None:
    for number in range(first, first + count):
        prompt = prompt_of(number)
        assert await stack.tokens(request_for(number, prompt)) == continuation(prompt, 8)


async def test_an_engine_of_another_box_comes_goes_and_comes_back() -> None:
    async with engine_stack({"unified-0": "unified"}) as stack:
        far = FakeVLLM(stack.fabric, "unified")
        await far.start()
        try:
            node = NodeB(stack, far.url)
            node.told()
            await until(lambda: stack.is_ready(SPEC.worker_id))
            first = stack.link(SPEC.worker_id)

            node.told(is_here=False)
            assert first.has_ended
            assert "node b" in stack.why_not_ready(SPEC.worker_id)
            far.bodies.clear()
            await answers_are_right(stack, 10)
            assert not far.bodies

            node.told(session=2)
            await until(lambda: stack.is_ready(SPEC.worker_id))
            assert stack.link(SPEC.worker_id) is not first

            await stack.engines["unified-0"].kill()
            await until(lambda: not stack.is_ready("unified-0"), 15.0)
            await answers_are_right(stack, 20)
            assert far.bodies

            node.told(session=2, is_leaving=True)
            await until(lambda: stack.why_not_ready(SPEC.worker_id) == "draining")
            assert not stack.link(SPEC.worker_id).has_ended

            node.take((), ())
            assert all(each.worker_id != SPEC.worker_id for each in stack.membership.members)
            assert f"engine:{SPEC.worker_id}" not in stack.openers
        finally:
            await far.kill()


@pytest.mark.parametrize(
    "change", [{"engine": "none"}, {"dialect": "none"}, {"role": "none"}, {"url": "file:///etc/passwd"}, None]
)
async def test_words_that_mean_nothing_leave_one_engine_out_and_nothing_else(change: dict[str, str] | None) -> None:
    """Red when one node's words end a gateway's following of all others, or are tried in it."""
    async with engine_stack({"unified-0": "unified"}) as stack:
        far = FakeVLLM(stack.fabric, "unified")
        await far.start()
        try:
            node = NodeB(stack, far.url)
            good = node.engine
            node.engine = replace(good, spec=packed_spec(replace(SPEC, **change)) if change else "{")
            node.told()
            assert all(each.worker_id != SPEC.worker_id for each in stack.membership.members)
            node.engine = good
            node.told()
            await until(lambda: stack.is_ready(SPEC.worker_id))
            node.engine = replace(good, spec="{")
            node.told(is_leaving=True)
            assert stack.is_ready(SPEC.worker_id), "what is known of it stays"
        finally:
            await far.kill()


async def test_a_node_has_no_say_over_the_way_to_another_ones_engine() -> None:
    """Red when an engine's prompts, and its key, can be sent elsewhere by a node that names it in its own words."""
    async with engine_stack({"unified-0": "unified"}) as stack:
        url = stack.openers["engine:unified-0"].spec.url
        node = NodeB(stack, "http://10.6.6.6:8000")
        lie = replace(SPEC, worker_id="unified-0", url="http://10.6.6.6:8000")
        node.engine = replace(node.engine, spec=packed_spec(lie))
        node.told()
        assert stack.openers["engine:unified-0"].spec.url == url
        await answers_are_right(stack, 1)


async def test_one_that_never_answered_is_not_waited_for_once_its_box_has_left() -> None:
    async with engine_stack({"unified-0": "unified"}) as stack:
        node = NodeB(stack, "http://127.0.0.1:9")
        node.told()
        await until(lambda: "does not answer" in stack.why_not_ready(SPEC.worker_id))
        opener = stack.openers[f"engine:{SPEC.worker_id}"]
        node.take((), ())
        await until(lambda: opener._closed)
        await answers_are_right(stack, 1)


def test_a_key_goes_with_the_engine_and_is_shown_to_no_operator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEY_OF_B", "secret-of-b")
    told = packed_spec(replace(SPEC, api_key_env="KEY_OF_B"))
    assert unpacked_spec(told, SPEC.worker_id).api_key == "secret-of-b"
    engine = NodeEngine(worker_id=SPEC.worker_id, role="unified", spec=told)
    assert "secret-of-b" not in repr(engine) + repr(shown_engines((engine,), 7))
    monkeypatch.delenv("KEY_OF_B")
    with pytest.raises(SettingsError, match="KEY_OF_B"):
        packed_spec(replace(SPEC, api_key_env="KEY_OF_B"))


def test_another_box_names_nothing_in_the_environment_of_a_gateway() -> None:
    told = msgspec.json.encode(replace(SPEC, api_key_env="AWS_SECRET_ACCESS_KEY")).decode()
    assert unpacked_spec(told, SPEC.worker_id).api_key_env == ""
    with pytest.raises(SettingsError, match="in words that are not read here"):
        unpacked_spec('{"worker_id": 7}', SPEC.worker_id)


async def test_a_node_tells_of_its_engines_under_an_epoch_and_that_they_leave() -> None:
    changes: list[int] = []
    engine = NodeEngine(worker_id=SPEC.worker_id, role="unified", spec=packed_spec(SPEC))
    waited: list[bool] = []

    async def idle() -> None:
        waited.append(True)

    workers = OwnWorkers([], lambda: changes.append(1), lambda *_: None, [engine], idle)
    assert workers.offered_engines() == ()
    await workers.take_epoch(5)
    assert workers.offered_engines() == (engine,)
    workers.drain()
    assert [each.is_leaving for each in workers.offered_engines()] == [True]
    await workers.all_gone()
    assert waited and changes
    message = Workers(1, (), (), workers.offered_engines())
    assert FROM_NODE.decode(msgspec.msgpack.encode(message)) == message


def test_a_box_may_have_engines_of_one_role() -> None:
    only = ("http://10.0.0.2:8000,role=prefill,engine=vllm",)
    assert parse_engines(only, is_part=True)[0].role == "prefill"
    with pytest.raises(SettingsError, match="none of them decodes"):
        parse_engines(only)


@pytest.mark.parametrize("host", ["10.0.0.2", "box-b.example"])
def test_one_that_a_box_starts_is_reached_where_the_box_is(host: str) -> None:
    local = replace(SPEC, url="http://127.0.0.1:4000", role="prefill", lease_s=12.0, api_key="k", served_name="m")
    spec = started_at(local, host)
    assert spec.url == f"http://{host}:4000"
    command = command_of(spec, "m", None, (), side_channel_port=5600)
    assert command.argv[command.argv.index("--host") + 1] == host
    assert command.environment["VLLM_NIXL_SIDE_CHANNEL_HOST"] == host
    if spec.events:  # engines listen at a star only, and dial any other address
        (told,) = (word for word in command.argv if "enable_kv_cache_events" in word)
        assert '"endpoint": "tcp://*:' in told and '"replay_endpoint": "tcp://*:' in told
        assert spec.events.startswith(f"tcp://{host}:")


def test_on_ipv6_events_are_left_out_as_vllm_tells_none_there() -> None:
    spec = started_at(replace(SPEC, url="http://127.0.0.1:4000"), "fd77::2")
    assert (spec.url, spec.events) == ("http://[fd77::2]:4000", "")
