"""`relevo bench peers`: the same prompts to Relevo and to other servers, in turns A B A B.

Owns the order of the experiment: in every round each server in turn gets the round's prompts; one that is given as a
command is started for its turn and ended after it, so that no two computing servers share the cores. Installs nothing.
A peer that fails is reported and left out of what it failed at; without our own server there is nothing to compare.
"""

from __future__ import annotations

import random
import shlex
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from relevo import __version__
from relevo.bench.client import OpenAIClient
from relevo.bench.peers.cold_start import FINE_POLL_S, first_token_at_ns
from relevo.bench.peers.dialect import probe_dialect
from relevo.bench.peers.prompts import PeerPrompt, make_prompt
from relevo.bench.peers.report import PeersReport, TargetResult, is_ours
from relevo.bench.peers.scenarios import (
    COLD_START,
    PREFILL_OUTPUT_TOKENS,
    Scenario,
    ScenarioKind,
    run_scenario,
)
from relevo.bench.server_process import ServerProcess, free_port
from relevo.core.errors import RelevoError, SettingsError
from relevo.telemetry.progress import Progress

PROBE_LEN = 8  # tokens of the prompt that finds out how a server is asked; arbitrary


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A server: at a URL, or to be started by a command in which `{port}` stands for the port it shall listen on."""

    name: str
    url: str | None = None
    command: str | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)  # body fields of its requests
    version: str = ""  # of a peer, as it is to be told; empty: not known

    def argv(self, port: int) -> list[str]:
        assert self.command is not None
        return [part.replace("{port}", str(port)) for part in shlex.split(self.command)]


@dataclass(frozen=True, slots=True, kw_only=True)
class PeersOptions:
    """Lengths in tokens. Every scenario runs `repeats` times per turn."""

    ours: Target
    peers: Sequence[Target]  # and other variants of ours, which only their names tell apart
    model: str | None  # to ask every server for; None: the first each one serves
    contexts: Sequence[int]
    decode_len: int
    prefill_lens: Sequence[int]
    streams: Sequence[int]
    stream_prompt_len: int
    stream_output_len: int
    rounds: int
    repeats: int
    start_timeout_s: float
    log_dir: Path
    seed: int

    def check(self) -> None:
        """Raise SettingsError for a comparison that cannot be carried out."""
        names = [target.name for target in (self.ours, *self.peers)]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise SettingsError(f"two servers are called {twice[0]}; give every --peer and --peer-command its own name")
        if all(is_ours(target.name) for target in self.peers):
            raise SettingsError("there is no server to compare with; name a server with --peer or --peer-command")
        for target in (self.ours, *self.peers):
            if target.command is not None and "{port}" not in target.command:
                raise SettingsError(f"the command of {target.name} has no {{port}}; put it where the port belongs")

    def scenarios(self) -> list[Scenario]:
        decode = [
            Scenario(kind=ScenarioKind.DECODE, prompt_len=length, max_tokens=self.decode_len)
            for length in self.contexts
        ]
        prefill = [
            Scenario(kind=ScenarioKind.PREFILL, prompt_len=length, max_tokens=PREFILL_OUTPUT_TOKENS)
            for length in self.prefill_lens
        ]
        streams = [
            Scenario(
                kind=ScenarioKind.STREAMS,
                prompt_len=self.stream_prompt_len,
                max_tokens=self.stream_output_len,
                num_streams=num_streams,
            )
            for num_streams in self.streams
        ]
        return [*decode, *prefill, *streams]


Prompts = dict[Scenario, list[list[PeerPrompt]]]  # per repeat, one for each stream


@dataclass(slots=True)
class _RoundPrompts:
    probe: PeerPrompt
    warm_up: PeerPrompt
    measured: Prompts


async def compare_peers(options: PeersOptions, report: PeersReport, progress: Progress) -> None:
    """Run the comparison; `report` is complete for everything that has ended, also when this is cancelled."""
    options.check()
    scenarios = options.scenarios()
    report.metrics += [COLD_START, *(metric for scenario in scenarios for metric in scenario.metrics)]
    targets = (options.ours, *options.peers)
    report.results += [TargetResult(name=each.name, version=_version(each)) for each in targets]
    options.log_dir.mkdir(parents=True, exist_ok=True)
    progress.begin("", options.rounds * len(targets) * len(scenarios) * options.repeats, "runs")
    for number in range(options.rounds):
        prompts: _RoundPrompts | None = None
        for target in targets:
            progress.rename(f"round {number + 1} of {options.rounds}: {target.name}")
            result = report.result(target.name)
            try:
                async with _serving(target, options, result) as (client, model):
                    prompts = prompts or await _make_prompts(client, model, options, number)
                    await _measure(client, model, target, prompts, result, progress)
            except RelevoError as error:
                if target is options.ours:
                    raise
                result.faults.append(error.message)


def _version(target: Target) -> str:
    return __version__ if is_ours(target.name) else target.version


@asynccontextmanager
async def _serving(
    target: Target, options: PeersOptions, result: TargetResult
) -> AsyncIterator[tuple[OpenAIClient, str]]:
    """A client of the running server and the model to ask for; a server that was started is gone afterwards."""
    if target.url is not None:
        async with OpenAIClient(target.url, reuse_connections=False) as client:
            yield client, await client.pick_model(options.model)
        return
    port = free_port()
    process = ServerProcess(
        target.argv(port),
        port,
        options.log_dir / f"{target.name}.log",
        start_timeout_s=options.start_timeout_s,
        poll_interval_s=FINE_POLL_S,
        ends_group=not is_ours(target.name),
    )
    async with process, OpenAIClient(process.url, reuse_connections=False) as client:
        model = await client.pick_model(options.model)
        first_at_ns = await first_token_at_ns(client, model)
        result.add([COLD_START], [(first_at_ns - process.started_at_ns) / 1e9])
        yield client, model


async def _make_prompts(client: OpenAIClient, model: str, options: PeersOptions, round_number: int) -> _RoundPrompts:
    """A round's own prompts, counted by our server."""
    rng = random.Random(f"peers:{options.seed}:{round_number}")
    scenarios = options.scenarios()
    longest = max(scenario.prompt_len for scenario in scenarios)
    return _RoundPrompts(
        probe=await make_prompt(client, model, PROBE_LEN, rng),
        warm_up=await make_prompt(client, model, longest, rng),
        measured={
            scenario: [
                [await make_prompt(client, model, scenario.prompt_len, rng) for _ in range(scenario.num_streams)]
                for _ in range(options.repeats)
            ]
            for scenario in scenarios
        },
    )


async def _measure(
    client: OpenAIClient,
    model: str,
    target: Target,
    prompts: _RoundPrompts,
    result: TargetResult,
    progress: Progress,
) -> None:
    """One server's turn. Raises StartError if it cannot be asked at all; runs that fail are reported one by one."""
    dialect = await probe_dialect(client, model, prompts.probe, target.extra)
    result.prompt_form, result.extra = str(dialect.form), dict(dialect.extra)
    await dialect.ask(client, prompts.warm_up, PREFILL_OUTPUT_TOKENS)
    for scenario, runs in prompts.measured.items():
        for run_prompts in runs:
            run = await run_scenario(client, dialect, scenario, run_prompts)
            progress.advance()
            result.num_cached_tokens += run.num_cached_tokens
            if run.fault is None:
                result.add(scenario.metrics, run.values)
            else:
                result.faults.append(run.fault)
