"""`relevo serve MODEL`: start everything, print one URL, run until Ctrl-C."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from typing import TYPE_CHECKING

from relevo import __version__
from relevo.build.plan import ServePlan
from relevo.build.resolve import ModelPlan
from relevo.build.serve import bound_address, open_listener, plan_serving, serving
from relevo.build.start_phases import StartPhases
from relevo.cli.options import with_settings_flags
from relevo.core.errors import StartError
from relevo.core.urls import server_url
from relevo.environment import read_environment
from relevo.settings import Settings
from relevo.supervisor import StartFailed
from relevo.telemetry.log import configure, say
from relevo.wire.status import Status

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


def serve(settings: Settings) -> None:
    """Serve a model over an OpenAI-compatible API, prefill and decode on separate workers."""
    configure(settings.log_level, "relevo")
    phases = StartPhases()
    for note in read_environment(os.environ, Settings.model_fields).notes:
        logging.getLogger("relevo").warning("environment: %s", note)
    listener = open_listener(settings.host, settings.port)
    plan = plan_serving(settings)
    if settings.ssl_certfile or settings.ssl_keyfile or settings.ssl_ca_certs or settings.ssl_cert_reqs:
        from relevo.build.tls import build_tls

        build_tls(plan.gateway.http)  # its files are tried before anything is loaded
    phases.done("model file's head, plan")
    url = server_url(*bound_address(listener), scheme="https" if settings.ssl_certfile else "http")
    view = StartView(plan, url, phases, settings.gateways)
    with serving(settings, plan, listener, view.on_status) as supervisor:
        view.show_plan()
        try:
            asyncio.run(supervisor.run())
        except StartFailed as failure:
            raise StartError(str(failure)) from failure
        finally:
            view.close()
            listener.close()


command = with_settings_flags(serve)


class StartView:
    """What a person sees while the server starts: the choices and why, loading, and then one URL."""

    def __init__(self, plan: ServePlan, url: str, phases: StartPhases, num_gateways: int) -> None:
        self._plan = plan
        self._url = url
        self._phases = phases
        self._progress: Progress | None = None
        self._tasks: dict[str, TaskID] = {}
        self._has_been_ready = False
        self._unready = {f"gateway-{i}" for i in range(num_gateways)} if num_gateways > 1 else {"gateway"}

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
        if status.kind == "progress" and not self._has_been_ready and sys.stderr.isatty():
            self._show_progress(name, status)
        elif status.kind == "note":
            self._print(f"{name}: {status.message}")
        elif status.kind == "ready" and name in self._unready:
            self._unready.discard(name)
            if self._unready:
                return
            self._has_been_ready = True
            self.close()
            self._phases.done("workers and gateway")
            logging.getLogger("relevo").info("%s", self._phases)
            self._print(f"ready: {self._url}/v1  (Ctrl-C stops)")

    def _show_progress(self, name: str, status: Status) -> None:
        if self._progress is None:
            self._progress = _started_progress()
        if name not in self._tasks:
            self._tasks[name] = self._progress.add_task(name, total=status.num_total)
        self._progress.update(self._tasks[name], completed=status.num_done)

    def _print(self, line: str) -> None:
        if self._progress is not None:
            self._progress.console.print(line, markup=False, highlight=False)  # above the bars
        else:
            say(line)

    def close(self) -> None:
        if self._progress is not None:
            self._progress.stop()
            self._progress = None


def _started_progress() -> Progress:
    """Imported when a terminal has something to show: the children do not wait for it."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

    columns = (TextColumn("loading {task.description}"), BarColumn(), DownloadColumn())
    progress = Progress(*columns, console=Console(stderr=True), transient=True)
    progress.start()
    return progress
