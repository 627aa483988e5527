"""What `relevo serve` does once its flags are read: plan, start, tell how far it is, run until Ctrl-C."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Sequence

from relevo import __version__
from relevo.build.cluster import clustered, head_ask, head_part
from relevo.build.listening import bound_address
from relevo.build.outside import open_probe_port, told_outside
from relevo.build.plan import ServePlan
from relevo.build.resolve import ModelPlan
from relevo.build.serve import plan_serving, serving
from relevo.build.start_phases import StartPhases
from relevo.core.errors import ProcessesKeepEnding, StartError
from relevo.core.urls import server_url
from relevo.settings import Settings
from relevo.supervisor import StartFailed, Supervisor
from relevo.telemetry.log import say
from relevo.telemetry.progress import SILENT, Progress, progress_here, ticking
from relevo.wire.started_process import StartedProcess
from relevo.wire.status import Status


def run_server(
    settings: Settings, listener: socket.socket, loop: asyncio.Runner, waiting: Sequence[StartedProcess]
) -> None:
    """Plan, start what is not `waiting` to become a part of it, serve until it is stopped. Raises StartError,
    ProcessesKeepEnding."""
    phases = StartPhases()
    probed = open_probe_port(settings.host, settings.probe_port)
    asked = head_ask(settings)
    plan = plan_serving(settings)  # what is wrong on this box is said before a join token is used
    part = head_part(asked, settings.token_file) if asked is not None else None
    if part is not None:
        plan = clustered(plan, part)
    if settings.ssl_certfile or settings.ssl_keyfile or settings.ssl_ca_certs or settings.ssl_cert_reqs:
        from relevo.build.tls import build_tls

        build_tls(plan.gateway.http)  # its files are tried before anything is loaded
    phases.done("model file's head, plan")
    url = server_url(*bound_address(listener), scheme="https" if settings.ssl_certfile else "http")
    view = StartView(plan, url, phases, settings.gateways, has_node=part is not None)
    with serving(settings, plan, listener, view.on_status, part) as supervisor:
        supervisor.waiting = waiting
        view.show_plan()
        supervise(loop, supervisor, view, probed)


def supervise(loop: asyncio.Runner, supervisor: Supervisor, view: StartView, probed: socket.socket | None) -> None:
    """Until it is stopped. Raises StartError, ProcessesKeepEnding."""
    try:
        loop.run(_run(supervisor, view.start(), probed))
    except StartFailed as failure:
        raise (ProcessesKeepEnding if failure.may_mend else StartError)(str(failure)) from failure
    finally:
        view.close()


async def _run(supervisor: Supervisor, progress: Progress, probed: socket.socket | None) -> None:
    async with ticking(progress), told_outside(supervisor, probed):
        await supervisor.run()


class StartView:
    """What a person sees while the server starts: the choices and why, what each process does, and then one URL."""

    def __init__(self, plan: ServePlan, url: str, phases: StartPhases, num_gateways: int, *, has_node: bool) -> None:
        self._plan = plan
        self._url = url  # empty: no gateway is on this box
        self._phases = phases
        self._progress: Progress = SILENT
        self._has_been_ready = False
        workers = [worker.worker_id for model in plan.models for worker in model.workers]
        workers += [command.worker_id for model in plan.models for command in model.commands]
        self._unready = {f"gateway-{i}" for i in range(num_gateways)} if num_gateways > 1 else {"gateway"}
        if not num_gateways:  # it works for those of other boxes
            self._unready = set(workers)
        if has_node:  # other boxes may come as soon as this one says that it is ready
            self._unready.add("node")
        self._phases_of = dict.fromkeys([*workers, *sorted(self._unready)], "starting")  # of processes not yet ready
        self._num_processes = len(self._phases_of)
        self._bytes: dict[str, tuple[int, int]] = {}  # of weights, done and in all, by worker

    def start(self) -> Progress:
        """The plan was shown; from here on something is under way."""
        self._progress = progress_here()
        self._progress.begin("starting", unit="bytes")
        return self._progress

    def show_plan(self) -> None:
        self._print(f"relevo {__version__}")
        for model in self._plan.models:
            self._show_model(model)
        for note in self._plan.notes:
            self._print(note)

    def _show_model(self, model: ModelPlan) -> None:
        names = ", ".join(model.served.served_model_names)
        self._print(f"{names}: at most {model.served.max_model_len} tokens per request")
        self._print(f"  topology {model.topology}: {model.topology_reason}")
        for worker in model.workers:
            cores = ",".join(map(str, worker.cores))
            self._print(f"  {worker.worker_id}: {worker.role}, core {cores}")
        for note in model.notes:
            self._print(f"  {note}")

    def on_status(self, name: str, status: Status) -> None:
        if status.kind in ("progress", "ready") and not self._has_been_ready:
            self._show_progress(name, status)
        if status.kind == "note":
            self._print(f"{name}: {status.message}")
        elif status.kind == "ready" and name in self._unready:
            self._unready.discard(name)
            if self._unready:
                return
            self._has_been_ready = True
            self.close()
            self._phases.done("workers and gateway")
            logging.getLogger("relevo").info("%s", self._phases)
            self._print(f"ready: {self._url}/v1  (Ctrl-C stops)" if self._url else "workers are ready  (Ctrl-C leaves)")

    def _show_progress(self, name: str, status: Status) -> None:
        if status.kind == "ready":
            self._phases_of.pop(name, None)
        else:
            self._phases_of[name] = status.message
        if status.num_total:
            self._bytes[name] = (status.num_done, status.num_total)
        self._progress.rename(self._under_way())
        num_done, num_total = (sum(numbers) for numbers in zip((0, 0), *self._bytes.values(), strict=True))
        self._progress.reach(num_done, num_total if num_done < num_total else 0)

    def _under_way(self) -> str:
        """`1 of 3 ready; warming up: prefill-0, decode-0`."""
        names: dict[str, list[str]] = {}
        for name, phase in self._phases_of.items():
            names.setdefault(phase, []).append(name)
        parts = [f"{phase}: {', '.join(of_phase)}" for phase, of_phase in names.items()]
        return "; ".join([f"{self._num_processes - len(self._phases_of)} of {self._num_processes} ready", *parts])

    def _print(self, line: str) -> None:
        """In order with the log, whose lines take the place of the progress line."""
        say(line)

    def close(self) -> None:
        self._progress.done()
