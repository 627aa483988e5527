"""Composition root of the gateway process."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import random
import secrets
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from relevo.build.about_model import about_model
from relevo.build.clock import MonotonicClock
from relevo.build.configs import GatewayConfig, ServedModelConfig
from relevo.build.dialects import dialect_of
from relevo.build.documents import read_text
from relevo.build.engine_links import EngineLinks
from relevo.build.event_loop import LoopTimers, run_until_complete
from relevo.build.http_server import build_limiter, build_site
from relevo.build.late_vocabularies import LateVocabularies
from relevo.build.metering import Metering, build_metering
from relevo.build.role_planner import planned, show_plans
from relevo.build.serve_http import serve_until_stopped
from relevo.build.start_phases import StartPhases
from relevo.build.tracing import Tracing, build_tracing, check_tracing
from relevo.build.traffic_log import TrafficRecording, TrafficRecordings, traffic_recordings
from relevo.build.vocabulary import tokenizer_files
from relevo.core.ids import WorkerId, WorkerRef
from relevo.core.model import TokenizerFiles
from relevo.gateway.console.reading import report_for_others
from relevo.gateway.console.watch import keep_watching
from relevo.gateway.http.app import create_app
from relevo.gateway.http.byte_account import ByteAccount
from relevo.gateway.http.context import GatewayContext
from relevo.gateway.operation.readiness import readiness
from relevo.gateway.requests.history import BYTES_PER_REQUEST, RequestHistory
from relevo.gateway.requests.routes import request_report, slowest_reports
from relevo.gateway.requests.store import NoReports
from relevo.gateway.routes import route_table
from relevo.gateway.text.chat_template import ModelTemplates
from relevo.gateway.text.detokenizer import IncrementalDetokenizer
from relevo.gateway.text.served_models import ServedModel, ServedModels
from relevo.gateway.text.tokenizer import Tokenizer
from relevo.gateway.text.tokenizer_info import tokenizer_info
from relevo.orchestrator.connections import Connections
from relevo.orchestrator.dispatch import Dispatcher
from relevo.orchestrator.in_flight import InFlightRequest
from relevo.orchestrator.insight import Insight
from relevo.orchestrator.member import Member
from relevo.orchestrator.membership import Membership
from relevo.orchestrator.placement import Placement
from relevo.orchestrator.ports import AwaitedLink
from relevo.planner.loop import RolePlanning
from relevo.policy.admission.admission import Admission, AdmissionLimits
from relevo.policy.admission.room import RoomLimits
from relevo.policy.cluster.epochs import incarnation_of
from relevo.policy.handoff.state import HandoffLimits
from relevo.policy.host.generation_defaults import defaults_note, generation_defaults
from relevo.policy.routing.router import RouterLimits, RoutingPolicy
from relevo.policy.routing.worker_choice import WorkerChooser
from relevo.policy.worker.prefix_cache import prompt_hashes
from relevo.telemetry.log import configure
from relevo.telemetry.metrics import GatewayMetrics
from relevo.wire.child_process import answer_pulses
from relevo.wire.client import WorkerConnection
from relevo.wire.status import Status

if TYPE_CHECKING:
    from relevo.build.gateway_cluster import GatewayCluster
    from relevo.build.gossip import Others

log = logging.getLogger("relevo.gateway")

THREAD_TURN_S = 0.001  # how long a thread that renders a template keeps the event loop waiting; arbitrary, Python: 5 ms
EXIT_S = 1.0  # for what runs in threads, once all rows are kept; arbitrary
EXIT_BROKEN = 1  # not 0, which a supervisor takes for an end that was asked for
JOIN_S = 5.0  # how long a gateway that was restarted waits for workers before it accepts; arbitrary

Report = Callable[[Status], None]


def run_gateway(config: GatewayConfig, report: Report) -> None:
    """Serve HTTP on the inherited socket until SIGTERM, then let running requests finish."""
    os.set_inheritable(config.listen_fd, False)  # ours, and of no process that we may start
    configure(config.log_level, config.gateway_id)
    phases = StartPhases()
    metrics = GatewayMetrics([m.served_model_names[0] for m in config.models], by_tenant=config.metrics_by_tenant)
    cluster = _cluster(config, metrics)
    recordings = traffic_recordings(config, metrics)
    backends = [build_backend(model, metrics, report, cluster, recordings.of(model)) for model in config.models]
    metering = build_metering(config, metrics, MonotonicClock())
    phases.done("dispatchers and ledger")
    tracing = _tracing(config, metrics)
    plannings = [planned(backend.config, backend.dispatcher, cluster) for backend in backends]
    vocabularies = LateVocabularies(lambda: sum(backend.dispatcher.num_in_flight for backend in backends))
    models = [_served_model(*each, vocabularies) for each in zip(backends, plannings, strict=True)]
    context = build_context(config, models, metrics, metering, cluster)
    at_work = [planning for planning in plannings if planning is not None]
    beside: list[RolePlanning | TrafficRecordings] = [*at_work, recordings]
    show_plans(metrics, at_work)
    context = replace(
        context, traces=tracing.traces if tracing is not None else None, plans=tuple(each.plan for each in at_work)
    )
    gossip = None
    if config.peers:
        others = _others(config, backends, context, metrics, metering, at_work)
        context, gossip = replace(context, others=others), others.sockets
    routes = route_table()
    app = create_app(context, routes)
    phases.done("tokenizers and application")
    log.info("%s", phases)
    gc.freeze()
    gc.enable()
    sys.setswitchinterval(THREAD_TURN_S)

    @contextlib.asynccontextmanager
    async def running() -> AsyncIterator[None]:
        connections = [backend.connections for backend in backends]
        tasks = [asyncio.create_task(each) for each in (*(c.run() for c in connections), vocabularies.run(connections))]
        tasks += [asyncio.create_task(each.run()) for each in (cluster,) if each is not None]
        tasks.append(asyncio.create_task(_report_ready(backends, report)))
        tasks += [asyncio.create_task(each.run()) for each in beside]
        tasks.append(asyncio.create_task(keep_watching(context.watch, context.models, context.metrics)))
        if gossip is not None:
            if config.epoch > 1:  # the others serve meanwhile
                await _all_ready(connections)
            tasks.append(asyncio.create_task(gossip.run()))
        for task in tasks:
            task.add_done_callback(end_if_broken)
        try:
            async with metering.running():
                yield
        finally:
            for each in beside:
                each.close()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    limiter = build_limiter(config.http, app, routes.error_format, metrics)
    broken: list[BaseException] = []

    def end_if_broken(task: asyncio.Task[None]) -> None:
        """A task that fails leaves its model without workers for ever; the supervisor starts a new gateway instead."""
        if not task.cancelled() and (error := task.exception()) is not None:
            log.critical("the connections to workers are broken, this gateway ends", exc_info=error)
            broken.append(error)
            context.stopping.drain()

    async def serve() -> None:
        if config.life_fd >= 0:
            alive = answer_pulses(config.life_fd, lambda: report(Status(kind="alive")))
            asyncio.get_running_loop().add_reader(config.life_fd, alive)
        await serve_until_stopped(config, limiter, running, context.stopping, metering.meter.hurry)
        ending = threading.Timer(EXIT_S, os._exit, (EXIT_BROKEN if broken else 0,))  # if a read of the database hangs
        ending.daemon = True
        ending.start()
        if tracing is not None:
            tracing.close()

    run_until_complete(serve())
    if broken:
        sys.exit(EXIT_BROKEN)


def _cluster(config: GatewayConfig, metrics: GatewayMetrics) -> GatewayCluster | None:
    """None: it serves with the workers of its box alone, and imports nothing of others. Raises StartError."""
    if not config.cluster_folder:
        return None
    from relevo.build.gateway_cluster import GatewayCluster

    return GatewayCluster.of(config, metrics)


def _tracing(config: GatewayConfig, metrics: GatewayMetrics) -> Tracing | None:
    """None unless the environment asks for it. Raises SettingsError."""
    asked = check_tracing(os.environ)
    if asked is None:
        return None
    tracing = build_tracing(asked, "relevo", config.gateway_id)
    metrics.count_dropped_traces(tracing.traces.num_dropped)
    return tracing


async def _all_ready(connections: Sequence[Connections]) -> None:
    """Or `JOIN_S` have passed: then its workers are really gone, and clients should hear it."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(JOIN_S):
            for each in connections:
                await each.ready.wait()


async def _report_ready(backends: Sequence[ModelBackend], report: Report) -> None:
    """Those without workers on this box wait for boxes to join, however long that takes."""
    for each in (backend for backend in backends if backend.config.workers):
        await each.connections.ready.wait()
    report(Status(kind="ready"))


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelBackend:
    """What generates one model's tokens: its workers' connections, and its dispatcher with router and admission."""

    config: ServedModelConfig
    connections: Connections
    placement: Placement
    dispatcher: Dispatcher
    insight: Insight


def build_backend(
    config: ServedModelConfig,
    metrics: GatewayMetrics,
    report: Report,
    cluster: GatewayCluster | None = None,
    recording: TrafficRecording | None = None,
) -> ModelBackend:
    membership = Membership(
        [
            Member(WorkerId(worker.worker_id), worker.role, worker.address, writes_to_others=worker.engine is None)
            for worker in config.workers
        ],
        heartbeat_timeout_s=config.heartbeat_timeout_s,
    )
    placement = Placement(
        membership, build_chooser(config), config.block_size, random.Random(), build_room_limits(config)
    )
    insight = Insight()
    engines = EngineLinks(config, metrics)
    kill = partial(_kill, report, cluster, engines)
    on_ended = recording.ended if recording is not None else None
    dispatcher = build_dispatcher(config, membership, placement, metrics, kill, insight, on_ended)
    connections = Connections(membership, partial(_connect, cluster, engines))
    if cluster is not None:
        cluster.follow(membership, connections, placement, engines)
    if recording is not None:
        recording.generator = dispatcher
    return ModelBackend(
        config=config,
        connections=connections,
        placement=placement,
        dispatcher=dispatcher,
        insight=insight,
    )


async def _connect(cluster: GatewayCluster | None, engines: EngineLinks, address: str) -> AwaitedLink:
    """To an engine that is not ours, a worker of another box, or one of this box."""
    opener = engines.at(address)
    if opener is not None:
        return await opener.open()
    return await (WorkerConnection.open(address) if cluster is None else cluster.connect(address))


def _kill(
    report: Report,
    cluster: GatewayCluster | None,
    engines: EngineLinks,
    worker: WorkerRef,
    reason: str,
) -> None:
    """By the supervisor of the box that it is on. An engine that is not ours has no blocks of ours: its link ends."""
    if engines.end(worker.worker_id, reason):
        return
    if cluster is not None and cluster.kill(worker, reason):
        return
    incarnation = incarnation_of(worker.epoch) if cluster is not None else worker.epoch
    report(Status(kind="kill", worker_id=worker.worker_id, epoch=incarnation, message=reason))


def build_dispatcher(
    config: ServedModelConfig,
    membership: Membership,
    placement: Placement,
    metrics: GatewayMetrics,
    kill: Callable[[WorkerRef, str], None],
    insight: Insight,
    on_ended: Callable[[InFlightRequest], None] | None = None,
) -> Dispatcher:
    clock = MonotonicClock()
    limits = HandoffLimits(
        queue_s=config.queue_timeout_s,
        prefill_s=config.prefill_timeout_s,
        transfer_s=config.transfer_timeout_s,
        drain_lease_s=config.drain_lease_s,
        max_attempts=config.max_attempts,
    )
    return Dispatcher(
        membership=membership,
        placement=placement,
        admission=Admission(build_admission_limits(config), config.tenant_weights),
        limits=limits,
        batch_limits=limits.for_batch(config.batch_queue_timeout_s),
        model_name=config.served_model_names[0],
        metrics=metrics,
        clock=clock,
        timers=LoopTimers(clock),
        kill=kill,
        hash_prompt=prompt_hashes,
        decide=insight.decisions,
        insight=insight,
        on_ended=on_ended,
    )


def _others(
    config: GatewayConfig,
    backends: Sequence[ModelBackend],
    context: GatewayContext,
    metrics: GatewayMetrics,
    metering: Metering,
    plannings: Sequence[RolePlanning],
) -> Others:
    from relevo.build.gossip import RequestSearch, build_others  # one gateway alone has no other to tell

    models = {backend.config.served_model_names[0]: (backend.placement, backend.dispatcher) for backend in backends}
    return build_others(
        config,
        models,
        metrics=lambda: metrics.scrape({served.name: served.generator.status() for served in context.models}),
        readiness=lambda: readiness(context),
        state=partial(report_for_others, context),
        requests=RequestSearch(
            find=lambda name, tenant, is_admin: request_report(context, name, tenant, is_admin=is_admin),
            slowest=partial(slowest_reports, context),
        ),
        meter=metering.meter,
        plannings=plannings,
    )


def build_room_limits(config: ServedModelConfig) -> RoomLimits:
    return RoomLimits(
        max_running=config.max_num_seqs,
        max_ahead_tokens=config.dispatch_ahead_tokens,
        max_ahead_s=config.dispatch_ahead_s,
        block_size=config.block_size,
        more_groups=config.more_groups,
        max_step_tokens=config.max_num_batched_tokens,
        tenant_weights=config.tenant_weights,
        streams_wait_for_line=config.slo_itl_s > 0.0,
    )


def build_admission_limits(config: ServedModelConfig) -> AdmissionLimits:
    return AdmissionLimits(
        max_queued_requests=config.max_num_queued_reqs,
        max_queued_tokens=config.max_num_queued_tokens,
        max_queued_batch_requests=config.max_num_queued_batch_reqs,
        max_ttft_s=config.max_queue_ttft_s,
        max_line_s=config.queue_timeout_s,
        max_batch_line_s=config.batch_queue_timeout_s,
    )


def build_chooser(config: ServedModelConfig) -> WorkerChooser:
    return WorkerChooser(
        RoutingPolicy(config.routing_policy),
        RouterLimits(
            load_factor=config.affinity_load_factor,
            max_affinity_penalty_s=config.affinity_max_penalty_s,
            conditional_disaggregation=config.conditional_disaggregation,
        ),
    )


def build_context(
    config: GatewayConfig,
    models: Sequence[ServedModel],
    metrics: GatewayMetrics,
    metering: Metering,
    cluster: GatewayCluster | None = None,
) -> GatewayContext:
    return GatewayContext(
        models=ServedModels(models),
        metrics=metrics,
        clock=MonotonicClock(),
        gateway_id=config.gateway_id,
        cluster=cluster,
        api_keys=metering.key_ring,
        meter=metering.meter,
        usage=metering.refresh,
        requests=_request_history(config, metering),
        reports=metering.reports or NoReports(),
        answers=metering.answers,
        sealing_key=bytes.fromhex(config.sealing_key) or secrets.token_bytes(32),
        metrics_require_key=config.metrics_require_key,
        expose_processes=config.expose_processes,
        allowed_origins=config.http.allowed_origins,
        max_body_bytes=config.max_body_bytes,
        body_memory=ByteAccount(config.max_body_memory_bytes),
        max_tokenize_bytes=config.max_tokenize_bytes,
        sse_keepalive_s=config.sse_keepalive_s or None,
        started_at_unix_s=int(time.time()),
        is_restarted=config.epoch > 1,
        site=build_site(config.http, config.listen_fd),
        affinity_headers=config.affinity_headers,
    )


def _request_history(config: GatewayConfig, metering: Metering) -> RequestHistory:
    if metering.reports is None:
        return RequestHistory(config.kept_requests, BYTES_PER_REQUEST * config.kept_requests)
    return RequestHistory(config.kept_requests, BYTES_PER_REQUEST * config.kept_requests, metering.reports.keep)


def _served_model(backend: ModelBackend, planning: RolePlanning | None, vocabularies: LateVocabularies) -> ServedModel:
    """Reads the model's tokenizer. Raises StartError."""
    config = backend.config
    with about_model(config.section):
        files = _with_template(config, tokenizer_files(config.model, config.revision, config.download_dir))
        tokenizer = Tokenizer(files)
        if tokenizer.vocab_size > config.vocab_size:
            log.warning(
                "%s: the tokenizer has ids up to %d and the model %d tokens; a prompt that holds id %d or "
                "above is refused",
                config.served_model_names[0],
                tokenizer.vocab_size - 1,
                config.vocab_size,
                config.vocab_size,
            )
        templates = _templates(config, files)
        dialect = dialect_of(config, files, templates, tokenizer)
        return ServedModel(
            names=config.served_model_names,
            generator=planning.window if planning is not None else backend.dispatcher,
            insight=backend.insight,
            tokenizer=tokenizer,
            chat_template=templates,
            make_parser=dialect.make_parser,
            markup_token_ids=dialect.markup_token_ids,
            tool_format=dialect.tool_format,
            reasoning_format=dialect.reasoning_format,
            make_detokenizer=partial(IncrementalDetokenizer, tokenizer),
            max_model_len=config.max_model_len,
            max_running=config.max_num_seqs,
            vocab_size=config.vocab_size,
            eos_token_ids=files.eos_token_ids,
            generation_defaults=_generation_defaults(config, files),
            draw_seed=(lambda: secrets.randbits(64)) if config.seed is None else (lambda: config.seed or 0),
            grammar_refusal=vocabularies.verdicts(config, tokenizer).refusal_of,
            tokenizer_info=tokenizer_info(files, config.max_model_len),
            model_hash=config.model_hash,
        )


def _generation_defaults(config: ServedModelConfig, files: TokenizerFiles) -> dict[str, float]:
    """What requests that say nothing sample with. Raises StartError."""
    stated, origin = files.generation_config, files.generation_origin
    if config.generation_config == "vllm":
        stated, origin = {}, "--override-generation-config"
    elif config.generation_config != "auto":
        from relevo.engine.loaders.tokenizer_files import read_generation_config

        origin = f"--generation-config {config.generation_config}"
        stated = read_generation_config(Path(config.generation_config).expanduser())
    defaults = generation_defaults(stated, origin, config.override_generation_config)
    if config.override_generation_config and origin != "--override-generation-config":
        origin += " and --override-generation-config"
    log.info("%s: %s", config.served_model_names[0], defaults_note(defaults, stated, origin))
    return defaults


def _with_template(config: ServedModelConfig, files: TokenizerFiles) -> TokenizerFiles:
    """Raises SettingsError when --chat-template cannot be read."""
    if config.chat_template is None:
        return files
    return replace(files, chat_template=read_text(config.chat_template, "--chat-template"), named_templates={})


def _templates(config: ServedModelConfig, files: TokenizerFiles) -> ModelTemplates | None:
    """Says so where chats will be refused. Raises StartError for a template that cannot be read."""
    templates = ModelTemplates.from_files(files, may_emulate=config.tool_emulation != "off")
    if templates is None or not templates.is_usable:
        names = ", ".join(files.named_templates)
        why = f"has chat templates named {names} and none for plain chats" if names else "has no chat template"
        if templates is not None:
            why = "has a chat template that does not put a plain question into the prompt"
        log.warning("%s %s; /v1/completions works, for chats give --chat-template", config.served_model_names[0], why)
    if templates is not None and templates.is_usable and not templates.knows_tools:
        told = "they are told as text in the system message" if templates.emulates_tools else "requests with tools fail"
        log.info("%s: the chat template has no place for tools; %s", config.served_model_names[0], told)
    return templates
