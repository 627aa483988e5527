"""Engines that are not ours in the plan of a server: which there are, how those that Relevo starts are started, and how
gateways reach them."""

from __future__ import annotations

import importlib.util
import secrets
import shutil
import socket
from collections.abc import Sequence
from dataclasses import replace
from urllib.parse import urlsplit

import msgspec

from relevo.build.configs import EngineConfig, ServedModelConfig
from relevo.build.models_file import AskedModel
from relevo.build.resolve import ModelAsk, ModelPlan, served_config, topology_of
from relevo.core.cluster import OWN_ENGINE
from relevo.core.errors import SettingsError
from relevo.core.kv import KVLayout
from relevo.core.model import ModelConfig
from relevo.core.urls import authority
from relevo.engines.commands import EngineCommand, command_of
from relevo.engines.layout import layout_of
from relevo.engines.spec import EngineSpec, parse_engines
from relevo.policy.handoff.dialects import FIRST_OF_ENGINE
from relevo.policy.host.topology import ONE_OF_EACH, Topology
from relevo.settings import Settings

NOT_OF_ENGINES = (
    "pipeline_parallel_size",
    "tensor_parallel_size",
    "enable_expert_parallel",
    "expert_load",
    "num_redundant_experts",
    "collectives",
    "quantization",
    "activation_dtype",
    "kv_cache_dtype",
    "decode_block_size",
    "num_kv_blocks",
    "kv_cache_memory_bytes",
    "backend",
)


def has_engines(settings: Settings) -> bool:
    """Tokens of this model are made by engines that are not ours."""
    return bool(settings.worker) or settings.engine != OWN_ENGINE


def engine_ask(asked: AskedModel) -> ModelAsk:
    """What a model's files say of its text: its weights are the engines'. Raises StartError."""
    settings = asked.settings
    _check(settings)
    if settings.model == "fake":
        raise SettingsError("MODEL fake has no weights that --engine or --worker could serve; name their model")
    vocab_size, max_len = _sizes(settings)
    model = ModelConfig(
        architecture="engine",
        vocab_size=vocab_size,
        hidden_size=0,
        intermediate_size=0,
        num_layers=0,
        num_heads=0,
        num_kv_heads=0,
        head_size=0,
        rms_norm_eps=0.0,
        rope_theta=0.0,
        max_position=max_len,
    )
    return ModelAsk(settings=settings, model=model, model_hash="", section=asked.section, price=asked.price)


def check_one_kind(settings: Settings) -> None:
    """Raises SettingsError."""
    if settings.worker and settings.engine != OWN_ENGINE:
        raise SettingsError(
            f"--engine {settings.engine} starts engines and --worker names running ones; keep one of the two"
        )


def _check(settings: Settings) -> None:
    check_one_kind(settings)
    if settings.engine_args and settings.engine == OWN_ENGINE:
        raise SettingsError(
            f"{settings.engine_args[0]!r} is for an engine that Relevo starts, and none was asked for; add --engine "
            "vllm or --engine sglang, or leave it out"
        )
    for name in NOT_OF_ENGINES:
        if name in settings.model_fields_set:
            raise SettingsError(
                f"--{name.replace('_', '-')} is of Relevo's own engine; give the other engine its own flags, after --"
            )


def _sizes(settings: Settings) -> tuple[int, int]:
    """Tokens that it knows, and the longest context."""
    from relevo.engine.loaders.locate import locate_model
    from relevo.engine.loaders.text_files import read_object

    path, _ = locate_model(settings.model, revision=settings.revision, download_dir=settings.download_dir)
    if not path.is_dir():
        from relevo.engine.loaders.gguf import open_gguf

        config = open_gguf(path, settings.model).config
        return config.vocab_size, config.max_context
    told = read_object(path / "config.json")
    told = {**told, **told["text_config"]} if isinstance(told.get("text_config"), dict) else told
    try:
        return int(told["vocab_size"]), int(told["max_position_embeddings"])
    except (KeyError, TypeError, ValueError):
        raise SettingsError(
            f"{path}/config.json does not say vocab_size and max_position_embeddings, which MODEL {settings.model} is "
            "asked for; name the model that the engines serve, its tokenizer is read from there"
        ) from None


def plan_engines(ask: ModelAsk) -> ModelPlan:
    """Raises SettingsError."""
    settings, started = ask.settings, ask.settings.engine != OWN_ENGINE
    max_model_len = settings.max_model_len or ask.model.max_position
    prefix = f"{ask.section}/" if ask.section else ""
    specs = _started(settings) if started else parse_engines(settings.worker, is_part=_is_part(settings))
    specs = tuple(
        replace(
            spec,
            worker_id=prefix + spec.worker_id,
            served_name=ask.served_names[0],
            block_size=settings.block_size,
            vocab_size=ask.model.vocab_size,
            max_model_len=settings.max_model_len or 0,
        )
        for spec in specs
    )
    topology = _topology(specs)
    return ModelPlan(
        ask=ask,
        topology=topology,
        topology_reason="started by Relevo" if started else "as --worker names them",
        layout=_layout(ask, specs),
        workers=(),
        engines=specs,
        commands=commands_of(ask, specs),
        served=served_config(ask, topology, max_model_len, 2048, specs),
        notes=tuple(f"{spec.worker_id}: {spec.engine} at {spec.url}, {spec.dialect}" for spec in specs),
    )


def _layout(ask: ModelAsk, specs: Sequence[EngineSpec]) -> KVLayout:
    """Of all boxes of a cluster, this one may have no engine."""
    none = EngineSpec(worker_id="", url="", role="unified", engine=engine_of(ask.settings), dialect="")
    here = specs[0] if specs else none
    return layout_of(replace(here, served_name=ask.served_names[0], block_size=ask.settings.block_size))


def _topology(specs: Sequence[EngineSpec]) -> Topology:
    roles = [spec.role for spec in specs]
    return Topology(
        num_prefill=roles.count("prefill"), num_decode=roles.count("decode"), num_unified=roles.count("unified")
    )


# ---- engines that Relevo starts --------------------------------------------------------------------------------------


def _started(settings: Settings) -> tuple[EngineSpec, ...]:
    topology = ONE_OF_EACH if settings.topology == "auto" else topology_of(settings)
    if topology.num_hybrid:
        raise SettingsError(
            f"--topology {settings.topology} is of Relevo's own engine; an engine of {settings.engine} has one role, "
            "so write 1p1d or unified"
        )
    if topology.num_workers:
        check_engine_installed(settings.engine)
    key = secrets.token_hex(16)  # of one start: no other user of this machine may ask the engines
    return tuple(
        EngineSpec(
            worker_id=worker_id,
            url=f"http://127.0.0.1:{free_port()}",
            role=role,
            engine=settings.engine,
            dialect=FIRST_OF_ENGINE[settings.engine].name,
            bootstrap=f"127.0.0.1:{free_port()}" if settings.engine == "sglang" else "",
            api_key=key,
            lease_s=STARTED_LEASE_S if settings.engine == "vllm" else 0.0,
        )
        for worker_id, role in topology.worker_roles()
    )


STARTED_LEASE_S = 12.0  # short: nothing but a lost decode engine needs more, and it ends what an abort left behind


def started_at(spec: EngineSpec, host: str) -> EngineSpec:
    """Of a box of a cluster: where others reach it. vLLM tells its KV events over IPv4 only."""
    url = f"http://{authority(host, urlsplit(spec.url).port or 0)}"
    bootstrap = authority(host, int(spec.bootstrap.rpartition(":")[2])) if spec.bootstrap else ""
    events, replay = (f"tcp://{host}:{free_port()}" if _has_zmq() and ":" not in host else "" for _ in range(2))
    return replace(spec, url=url, bootstrap=bootstrap, events=events, replay=replay)


def with_event_sockets(model: ModelPlan, folder: str, first: int) -> ModelPlan:
    """Engines that Relevo starts for this box alone tell their KV events over sockets that only its user opens: prompts
    are in them. `folder`: of this start."""
    if not model.commands or not _has_zmq() or any(spec.events for spec in model.engines):
        return model
    specs = tuple(
        replace(spec, events=f"ipc://{folder}/e{number}", replay=f"ipc://{folder}/r{number}")
        for number, spec in enumerate(model.engines, start=first)
    )
    return replace(
        model, engines=specs, commands=commands_of(model.ask, specs), served=with_engines(model.served, specs)
    )


def with_engines(served: ServedModelConfig, specs: Sequence[EngineSpec]) -> ServedModelConfig:
    """The same engines, reached in another way."""
    of_name = {spec.worker_id: spec for spec in specs}
    workers = tuple(
        msgspec.structs.replace(each, engine=of_name.get(each.worker_id, each.engine)) for each in served.workers
    )
    return msgspec.structs.replace(served, workers=workers)


def _has_zmq() -> bool:
    return importlib.util.find_spec("zmq") is not None


def check_engine_installed(engine: str) -> None:
    """Raises SettingsError."""
    is_there = shutil.which("vllm") if engine == "vllm" else importlib.util.find_spec("sglang")
    if not is_there:
        what = "the command vllm is not in PATH" if engine == "vllm" else "Python finds no package sglang"
        raise SettingsError(
            f"--engine {engine}: {what}; install {engine} beside Relevo, or start it yourself and name it with --worker"
        )


def commands_of(ask: ModelAsk, specs: Sequence[EngineSpec]) -> tuple[EngineConfig, ...]:
    """Of those that Relevo starts."""
    return tuple(_command(ask, spec) for spec in specs) if ask.settings.engine != OWN_ENGINE else ()


def _is_part(settings: Settings) -> bool:
    """Other boxes have more of them."""
    return bool(settings.cluster or settings.join)


def engine_of(settings: Settings) -> str:
    """What computes."""
    return parse_engines(settings.worker, is_part=True)[0].engine if settings.worker else settings.engine


def _command(ask: ModelAsk, spec: EngineSpec) -> EngineConfig:
    from relevo.engine.loaders.locate import locate_model

    settings = ask.settings
    path, _ = locate_model(settings.model, revision=settings.revision, download_dir=settings.download_dir)
    command: EngineCommand = command_of(
        spec, str(path), settings.max_model_len, settings.engine_args, side_channel_port=free_port()
    )
    return EngineConfig(
        worker_id=spec.worker_id,
        section=ask.section,
        argv=command.argv,
        environment=dict(command.environment),
        url=spec.url,
        shutdown_timeout_s=settings.shutdown_timeout_s,
        log_level=settings.log_level,
    )


def free_port() -> int:
    """Of the loopback address. Free until something else takes it: an engine that cannot have it says so."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        assert isinstance(port, int)
        return port
