"""What `relevo join` does before it starts anything: become a node, ask what must be equal, see whether it is.

Waits for a head that is not there yet, for as long as it takes: that is no failure. What waiting does not mend is said
in one sentence.
"""

from __future__ import annotations

import asyncio
import random
import socket
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from relevo.build.cluster import DEFAULT_PORT, ClusterPart, advertised, clustered, node_facts
from relevo.build.cluster_checks import check_box, check_heads, check_lends, check_model_path
from relevo.build.cluster_folder import cluster_folder, default_node_name
from relevo.build.engines import NOT_OF_ENGINES, engine_of
from relevo.build.plan import ServePlan
from relevo.build.serve import plan_serving
from relevo.cluster.enrolment import enrol
from relevo.cluster.identity import NodeIdentity
from relevo.cluster.identity_folder import NODE
from relevo.cluster.join_token import read_join_token
from relevo.cluster.member_messages import FROM_HEAD, AskFacts, Facts
from relevo.cluster.opening import Purpose
from relevo.cluster.peer import NAME_RULE, NodeRole, PeerRefused, Refusal, is_node_name
from relevo.cluster.sockets import close_all, listening_sockets
from relevo.cluster.stream import open_stream
from relevo.core.cluster import OWN_ENGINE, ClusterFacts
from relevo.core.errors import ProtocolError, RelevoError, SettingsError, StartError
from relevo.core.host_port import HostPort, parse_host_ports
from relevo.core.kv import MAX_BLOCK_SIZE
from relevo.policy.cluster.backoff import Backoff
from relevo.policy.cluster.checks import mismatch
from relevo.settings import Settings

ANSWER_TIMEOUT_S = 5.0
_WAITED_FOR = (Refusal.LIMIT, Refusal.TIMEOUT, Refusal.EXPIRED)  # a person or time mends it while we wait

_Found = TypeVar("_Found")
Say = Callable[[str], None]


class JoinRefused(StartError):
    """This box cannot join as it is set up; asking again would not change it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinAsk:
    """As `relevo join` was asked."""

    heads: tuple[HostPort, ...]
    token_file: Path | None
    name: str
    listen: HostPort
    control: HostPort | None  # where others reach this box; None: at the address from which it reaches the head
    model: str | None  # None: as the head calls it


def join_ask(
    heads: str, token_file: str | None, name: str | None, listen: str | None, advertise: str | None, model: str | None
) -> JoinAsk:
    """Raises SettingsError."""
    places = parse_host_ports(heads, "HEAD")
    check_heads(places, "HEAD")
    check_model_path(model)
    if name and not is_node_name(name):
        raise SettingsError(f"--name {name[:80]!r} cannot be a node's: {NAME_RULE}")
    where = HostPort.parse(listen, "--listen", default_port=DEFAULT_PORT) if listen else None
    where = where or HostPort(_every_address(), places[0].port)
    control = advertised(advertise, where)
    return JoinAsk(
        heads=places,
        token_file=Path(token_file).expanduser() if token_file else None,
        name=name or default_node_name(),
        listen=where,
        control=None if control.is_wildcard else control,
        model=model,
    )


def plan_joining(ask: JoinAsk, settings: Settings, say: Say) -> tuple[Settings, ServePlan, ClusterPart]:
    """`settings`: those of this box alone. Returns when a head has said what must be equal, and it is. Raises
    JoinRefused, SettingsError, StartError."""
    check_lends(settings)
    check_box(settings)
    close_all(listening_sockets(ask.listen))  # a port that is taken is said before anything else
    folder = cluster_folder(settings.cluster_dir, settings.data_dir)
    identity = asyncio.run(_identity(ask, folder, say))
    facts, heads, reached_from = asyncio.run(_facts(ask, identity, say))
    settings = _with_equal(settings, facts, ask.model)
    plan = plan_serving(settings)
    differs = mismatch(facts.node, node_facts(plan.models[0]), identity.name, 0.0)
    if differs is not None:
        raise JoinRefused(differs.message)
    part = ClusterPart(
        folder=folder,
        name=identity.name,
        listen=ask.listen,
        control=ask.control or HostPort(reached_from, ask.listen.port),
        heads=tuple(dict.fromkeys((*ask.heads, *heads))),
        is_head=False,
        node_epoch=0,
    )
    return settings, clustered(plan, part), part


def _every_address() -> str:
    return "::" if socket.has_dualstack_ipv6() else "0.0.0.0"


def _with_equal(settings: Settings, facts: ClusterFacts, model: str | None) -> Settings:
    """What must be equal is the head's. Raises SettingsError, also for what no head can have."""
    if not 1 <= facts.block_size <= MAX_BLOCK_SIZE or facts.node.max_model_len < 1:
        raise SettingsError(
            f"the head says that it has blocks of {facts.block_size} tokens and a context of "
            f"{facts.node.max_model_len}, which cannot be; install the same release on both and start it again"
        )
    equal: dict[str, object] = {
        "model": model or facts.model,
        "revision": facts.revision,
        "dtype": facts.dtype,
        "quantization": facts.quantization,
        "activation_dtype": facts.activation_dtype,
        "kv_cache_dtype": facts.kv_cache_dtype,
        "block_size": _block_size(settings, facts),
        "max_model_len": facts.node.max_model_len,
        "join": ("head",),  # others are reached over the network
    }
    if facts.is_cut:
        equal["tensor_parallel_size"] = settings.tensor_parallel_size or 1
        equal["enable_expert_parallel"] = settings.enable_expert_parallel or facts.enable_expert_parallel
    if (engine := _engine(settings, facts)) is not None:
        equal = {name: value for name, value in equal.items() if name not in NOT_OF_ENGINES} | engine
    return settings.model_copy(update=equal)


def _block_size(settings: Settings, facts: ClusterFacts) -> int:
    """The head's, unless this box was given its own. Raises SettingsError."""
    if "block_size" not in settings.model_fields_set or settings.block_size == facts.block_size:
        return facts.block_size
    if facts.engine != OWN_ENGINE:
        raise SettingsError(
            f"block size {settings.block_size}: blocks of {facts.engine} have {facts.block_size} tokens on all "
            "boxes of this cluster; leave it out"
        )
    return settings.block_size


def _engine(settings: Settings, facts: ClusterFacts) -> dict[str, object] | None:
    """The head's, unless this box names running ones of that kind; None: Relevo's own. Raises SettingsError."""
    here = engine_of(settings)
    if here not in (OWN_ENGINE, facts.engine):
        said = "Relevo's own engine" if facts.engine == OWN_ENGINE else facts.engine
        raise SettingsError(
            f"this cluster computes with {said}, and this box was asked for {here}: they cannot hand KV to each other; "
            f"leave --engine and --worker out, or join a cluster whose head was started with --engine {here}"
        )
    if facts.engine == OWN_ENGINE:
        return None
    return {
        "engine": OWN_ENGINE if settings.worker else facts.engine,
        "served_model_name": (facts.node.model_name,),  # engines are asked for it
    }


async def _identity(ask: JoinAsk, folder: Path, say: Say) -> NodeIdentity:
    if (folder / NODE).exists():
        identity = NodeIdentity.load(folder)
        if identity.role is not NodeRole.NODE:
            raise StartError(
                f"this box is enrolled as a head ({folder}) and serves with `relevo serve --cluster`; to lend workers "
                "beside that, join with another --cluster-dir and a token"
            )
        if ask.name != identity.name:
            say(f"this box is known to the cluster as {identity.name}; another name needs another --cluster-dir")
        return identity
    token = read_join_token(ask.token_file)

    async def once() -> NodeIdentity:
        return await enrol(ask.heads, token, folder=folder, name=ask.name, role=NodeRole.NODE)

    return await _until_done(once, say)


async def _facts(ask: JoinAsk, identity: NodeIdentity, say: Say) -> tuple[ClusterFacts, Sequence[HostPort], str]:
    """What must be equal, all heads, and the address by which this box reached one."""

    async def once() -> tuple[ClusterFacts, Sequence[HostPort], str]:
        errors: list[Exception] = []
        for place in ask.heads:
            try:
                stream = await open_stream(place, Purpose.MEMBER, identity=identity, role=NodeRole.HEAD)
                try:
                    reached_from = stream.local_address.host
                    stream.send(AskFacts())
                    async with asyncio.timeout(ANSWER_TIMEOUT_S):
                        answer = await stream.receive(FROM_HEAD)
                finally:
                    stream.close()
                if not isinstance(answer, Facts):
                    raise ProtocolError(f"{place} answered with {type(answer).__name__}")
                return answer.facts, [HostPort.parse(each) for each in answer.heads], reached_from
            except (OSError, RelevoError) as error:
                errors.append(error)
        raise next((error for error in errors if isinstance(error, PeerRefused)), errors[0])

    return await _until_done(once, say)


async def _until_done(once: Callable[[], Awaitable[_Found]], say: Say) -> _Found:
    backoff, said, said_s = Backoff(random.Random()), "", 0.0
    while True:
        try:
            return await once()
        except PeerRefused as refused:
            if refused.reason not in _WAITED_FOR:
                raise JoinRefused(refused.message) from refused
            reason = refused.message
        except SettingsError:
            raise
        except StartError:
            raise
        except (OSError, RelevoError) as error:
            reason = error.message if isinstance(error, RelevoError) else str(error)
        if reason != said or time.monotonic() - said_s > 30.0:
            said, said_s = reason, time.monotonic()
            say(f"waiting for a head: {reason}")
        await asyncio.sleep(backoff.next_s())
