"""A box's part in a cluster: what it says of itself, where it listens, under which epoch its workers start.

From settings and a plan to the configuration of its node process. Reads the box's identity and its last epoch.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from relevo import __version__
from relevo.build.backend import instruction_path
from relevo.build.cluster_checks import check_box, check_heads
from relevo.build.cluster_folder import cluster_folder, default_node_name
from relevo.build.configs import NodeConfig, ServedModelConfig, WorkerAddress, WorkerConfig
from relevo.build.engines import commands_of, engine_of, started_at
from relevo.build.plan import ServePlan
from relevo.build.resolve import ModelPlan
from relevo.build.vocabulary import tokenizer_files
from relevo.cluster.epoch_file import OWN_EPOCH, EpochFile
from relevo.cluster.identity import NodeIdentity
from relevo.cluster.identity_folder import NODE
from relevo.cluster.join_token import read_join_token
from relevo.cluster.peer import NodeRole, PeerRefused
from relevo.cluster.sockets import close_all, listening_sockets
from relevo.core.cluster import ClusterFacts, NodeFacts, box_id_of, worker_id_on
from relevo.core.errors import SettingsError, StartError
from relevo.core.host_port import HostPort, parse_host_ports
from relevo.engines.spec import EngineSpec
from relevo.policy.cluster.epochs import next_epoch
from relevo.settings import Settings
from relevo.wire.messages import PROTOCOL_VERSION

FEED_SOCKET = "node.sock"  # of the runtime folder
DEFAULT_PORT = 7000  # of the control port, where none is said
_OWN = "own"


@dataclass(frozen=True, kw_only=True)
class ClusterPart:
    """Of one box."""

    folder: Path
    name: str
    listen: HostPort
    control: HostPort  # where others reach the control port
    heads: tuple[HostPort, ...]  # to join
    is_head: bool
    node_epoch: int  # 0: the first join gives one


@dataclass(frozen=True, kw_only=True)
class HeadAsk:
    """As `relevo serve --cluster` was asked."""

    listen: HostPort
    control: HostPort
    heads: tuple[HostPort, ...]  # to join
    folder: Path


def head_ask(settings: Settings) -> HeadAsk | None:
    """None: it serves alone. Reaches no other box. Raises SettingsError."""
    if settings.cluster is None:
        for name in ("join", "advertise", "token_file"):
            if getattr(settings, name):
                flag = f"--{name.replace('_', '-')}"
                raise SettingsError(f"{flag} is for a server of a cluster; give --cluster HOST:PORT, too")
        return None
    if settings.models is not None:
        raise SettingsError("--cluster serves one model on all boxes, and --models names a file of several; give MODEL")
    listen = HostPort.parse(settings.cluster, "--cluster", default_port=DEFAULT_PORT)
    heads = tuple(place for text in settings.join for place in parse_host_ports(text, "--join"))
    check_heads(heads, "--join")
    check_box(settings)
    if heads and listen.is_wildcard and not settings.advertise:
        raise SettingsError(
            f"--cluster {listen} is no place that other heads reach; say one with --advertise, as 10.0.0.5"
        )
    close_all(listening_sockets(listen))  # a port that is taken is said before anything else
    return HeadAsk(
        listen=listen,
        control=advertised(settings.advertise, listen),
        heads=heads,
        folder=cluster_folder(settings.cluster_dir, settings.data_dir),
    )


def head_part(ask: HeadAsk, token_file: str | None) -> ClusterPart:
    """Its epoch is on disk. A box that is new to the cluster is enrolled. Raises SettingsError, StartError."""
    folder = ask.folder
    if ask.heads and not (folder / NODE).exists():
        enrol_head(folder, ask.heads, token_file)
    identity = NodeIdentity.load(folder)
    if identity.role is not NodeRole.HEAD:
        raise StartError(
            f"this box is enrolled as a node ({folder}) and --cluster makes it a head; enrol it with a token of "
            "`relevo cluster token --role head` and another --cluster-dir"
        )
    return ClusterPart(
        folder=folder,
        name=identity.name,
        listen=ask.listen,
        control=ask.control,
        heads=ask.heads,
        is_head=True,
        node_epoch=begin_epoch(folder),
    )


def enrol_head(folder: Path, heads: Sequence[HostPort], token_file: str | None) -> None:
    """A further head of a cluster: its certificate is in the folder afterwards. Raises SettingsError, StartError."""
    from relevo.cluster.enrolment import enrol  # needs a library that no other start does

    token = read_join_token(Path(token_file).expanduser() if token_file else None)
    name = token.name or default_node_name()
    try:
        asyncio.run(enrol(heads, token, folder=folder, name=name, role=NodeRole.HEAD))
    except OSError as error:
        raise StartError(f"no head of --join could be asked for a certificate: {error}; start one") from error
    except PeerRefused as refused:
        raise StartError(f"no head lets this box in: {refused.message}") from refused


def advertised(text: str | None, listen: HostPort) -> HostPort:
    """Raises SettingsError."""
    place = HostPort.parse(text, "--advertise", default_port=listen.port) if text else listen
    if text and place.is_wildcard:
        raise SettingsError(f"--advertise {place} is no place that others can connect to; give an address of this box")
    if not place.port:
        raise SettingsError(f"{place} has port 0, any free one, and other boxes have to know which; give a port")
    return place


def begin_epoch(folder: Path) -> int:
    """The next of this box, kept before it is used."""
    file = EpochFile(folder / OWN_EPOCH)
    epoch = next_epoch(file.read().values(), time.time())
    file.keep({_OWN: epoch})
    return epoch


def clustered(plan: ServePlan, part: ClusterPart) -> ServePlan:
    """With names that are unique over all boxes, and workers that know which box is theirs."""
    models = tuple(_clustered(model, part) for model in plan.models)
    gateway = msgspec.structs.replace(
        plan.gateway,
        models=tuple(model.served for model in models),
        cluster_folder=str(part.folder),
        node_name=part.name,
    )
    return replace(plan, models=models, gateway=gateway)


def _clustered(model: ModelPlan, part: ClusterPart) -> ModelPlan:
    from relevo.build.kv_door import with_doors  # and its TLS: between boxes only

    def named(worker_id: str) -> str:
        return worker_id_on(part.name, worker_id)

    specs = tuple(_reachable(spec, named(spec.worker_id), part, model) for spec in model.engines)
    engines = {spec.worker_id: spec for spec in specs}
    workers = tuple(
        msgspec.structs.replace(
            worker,
            worker_id=named(worker.worker_id),
            box_id=box_id_of(part.name),
            node_epoch=part.node_epoch,
        )
        for worker in with_doors(
            model.workers,
            model.ask.settings,
            node_folder=part.folder,
            host=part.listen.host,
            advertised_host=part.control.host,
        )
    )
    served: ServedModelConfig = msgspec.structs.replace(
        model.served,
        workers=tuple(_named(each, named(each.worker_id), engines) for each in model.served.workers),
    )
    return replace(model, workers=workers, served=served, engines=specs, commands=commands_of(model.ask, specs))


def _named(worker: WorkerAddress, name: str, engines: Mapping[str, EngineSpec]) -> WorkerAddress:
    engine = engines.get(name)
    address = worker.address if engine is None else engine.address
    return msgspec.structs.replace(worker, worker_id=name, address=address, engine=engine)


def _reachable(spec: EngineSpec, name: str, part: ClusterPart, model: ModelPlan) -> EngineSpec:
    """One that is started here listens where other boxes reach this one, and asks for its key."""
    if not model.commands:
        return replace(spec, worker_id=name)
    return replace(started_at(spec, part.control.host), worker_id=name)


def node_config(
    plan: ServePlan, part: ClusterPart, workers: Sequence[WorkerConfig], settings: Settings, folder: str
) -> NodeConfig:
    """`workers`: with their addresses. `folder`: of the sockets of this start."""
    model = plan.models[0]
    facts = node_facts(model)
    return NodeConfig(
        folder=str(part.folder),
        listen=str(part.listen),
        control=str(part.control),
        workers=tuple(WorkerAddress(worker_id=each.worker_id, role=each.role, address=each.address) for each in workers)
        + tuple(
            WorkerAddress(worker_id=spec.worker_id, role=spec.role, address=spec.address, engine=spec)
            for spec in model.engines
        ),
        facts=facts,
        heads=tuple(map(str, part.heads)),
        cluster=cluster_facts(model, facts) if part.is_head else None,
        feed_path=f"{folder}/{FEED_SOCKET}" if part.is_head else "",
        node_epoch=part.node_epoch,
        drain_timeout_s=settings.shutdown_timeout_s,
        kv_encrypts=all(worker.kv_encrypts for worker in workers),
        log_level=settings.log_level,
    )


def node_facts(model: ModelPlan) -> NodeFacts:
    """Raises StartError."""
    return NodeFacts(
        version=__version__,
        protocol_version=PROTOCOL_VERSION,
        model_name=model.served.served_model_names[0],
        model_hash=model.ask.model_hash,
        tokenizer_hash=tokenizer_hash(model.ask.settings),
        max_model_len=model.served.max_model_len,
        layout=model.layout,
        compute=compute_of(model.workers[0]) if model.workers else "",  # engines look at each other by themselves
    )


def cluster_facts(model: ModelPlan, facts: NodeFacts) -> ClusterFacts:
    settings = model.ask.settings
    return ClusterFacts(
        node=facts,
        model=settings.model,
        revision=settings.revision,
        dtype=settings.dtype,
        quantization=settings.quantization,
        activation_dtype=settings.activation_dtype,
        kv_cache_dtype=settings.kv_cache_dtype,
        block_size=settings.block_size,
        engine=engine_of(settings),
        is_cut=settings.tensor_parallel_size is not None,
        enable_expert_parallel=settings.enable_expert_parallel,
    )


def tokenizer_hash(settings: Settings) -> str:
    """Of what turns text into tokens and back; a model without a tokenizer has none."""
    try:
        files = tokenizer_files(settings.model, settings.revision, settings.download_dir)
    except StartError:
        return ""
    digest = hashlib.sha256(files.tokenizer_json.encode())
    digest.update(repr((files.bpe, files.bos_token, files.eos_token, files.stated_eos_token_ids)).encode())
    return digest.hexdigest()[:32]


def compute_of(worker: WorkerConfig) -> str:
    """What the last bits of its logits depend on."""
    if worker.backend == "fake":
        return "fake"
    path = instruction_path() if worker.backend == "native" else worker.device
    types = "/".join(filter(None, (worker.dtype, worker.quantization or "", worker.activation_dtype)))
    sums = " in slices" if worker.tensor_parallel_size is not None else ""
    return f"{worker.backend} {path} {types}{sums}{' of whole experts' if worker.enable_expert_parallel else ''}"
