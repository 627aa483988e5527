"""`relevo bench interference`: what arriving prompts do to running streams, unified against disaggregated.

Owns the plan of the experiment: measure what the prefill worker sustains, derive the arrival rate from it, then serve
the same streams and the same arrivals with every variant in turn (A B C, A B C, ...), on the same cores, one server at
a time. The seed of a round is shared by all variants, so that they meet identical prompts at identical times.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from relevo.bench.client import OpenAIClient
from relevo.bench.interference.phase import PhaseOptions, open_loop_phase, sustained_prompts_per_s
from relevo.bench.interference.report import InterferenceReport, Variant, VariantResult
from relevo.bench.server_process import ServerProcess, free_port, serve_command
from relevo.core.errors import SettingsError
from relevo.core.urls import normalise_url
from relevo.telemetry.progress import Progress
from relevo.workload.arrivals import ArrivalKind, arrival_offsets, arrivals_until


@dataclass(frozen=True, slots=True, kw_only=True)
class InterferenceOptions:
    """`urls` (variant name -> URL) replaces the servers that would be started; names begin with 1p1d or unified."""

    model: str | None
    urls: Mapping[str, str]
    topology: str
    chunk_sizes: Sequence[int]
    prefill_chunk_size: int | None  # of the disaggregated variant; None: the server's default
    serve_flags: tuple[str, ...]  # for every server that is started
    load: float
    rate_per_s: float | None  # given: nothing is measured beforehand
    num_rate_prompts: int
    rounds: int
    phase: PhaseOptions
    log_dir: Path

    def check(self) -> None:
        """Raise SettingsError for a plan that cannot be carried out."""
        if self.load <= 0:
            raise SettingsError(f"--load must be above 0, got {self.load}; 0.6 is 60 % of what prefill sustains")
        if self.rounds < 1:
            raise SettingsError(f"--rounds must be at least 1, got {self.rounds}")
        for name in self.urls:
            if not name.startswith(("unified", "1p", "2p", "3p", "4p")):
                raise SettingsError(f"--url names a variant {name!r}; call it unified-256 or 1p1d, for example")


def plan_variants(options: InterferenceOptions) -> list[Variant]:
    """The disaggregated variant first: the arrival rate is measured on it."""
    if options.urls:
        given = [
            Variant(name=name, is_unified=name.startswith("unified"), url=normalise_url(url))
            for name, url in options.urls.items()
        ]
        return sorted(given, key=lambda variant: variant.is_unified)
    split_flags = ["--topology", options.topology, *_chunk_flags(options.prefill_chunk_size)]
    split = Variant(
        name=options.topology,
        is_unified=False,
        chunk_size=options.prefill_chunk_size,
        flags=(*split_flags, *options.serve_flags),
    )
    unified = [
        Variant(
            name=f"unified-{chunk_size}",
            is_unified=True,
            chunk_size=chunk_size,
            flags=("--topology", "unified", *_chunk_flags(chunk_size), *options.serve_flags),
        )
        for chunk_size in options.chunk_sizes
    ]
    return [split, *unified]


async def compare_topologies(options: InterferenceOptions, report: InterferenceReport, progress: Progress) -> None:
    """Run the experiment; `report` is complete for everything that has ended, also when this is cancelled."""
    options.check()
    variants = plan_variants(options)
    report.arrival_rate_per_s = options.rate_per_s or 0.0
    report.results.extend(VariantResult(variant) for variant in variants)
    for round_number in range(options.rounds):
        phase = replace(options.phase, seed=options.phase.seed + 2 * round_number)
        for result in report.results:
            name = f"round {round_number + 1} of {options.rounds}: {result.variant.name}"
            progress.begin(f"{name}, starting")
            async with _running(result.variant, options) as url:
                if not report.arrival_rate_per_s:
                    progress.begin("what prefill sustains", options.num_rate_prompts + 1, "prompts")
                    rate = await sustained_prompts_per_s(url, phase, options.num_rate_prompts, progress)
                    report.sustained_prompts_per_s = rate
                    report.arrival_rate_per_s = options.load * rate
                    arrivals = f"arrivals at {report.arrival_rate_per_s:.3f}/s"
                    progress.say(f"prefill sustains {rate:.3f} prompts/s; {arrivals}")
                arrivals_s = arrivals_until(
                    arrival_offsets(ArrivalKind.POISSON, report.arrival_rate_per_s, random.Random(phase.seed)),
                    phase.duration_s,
                )
                progress.begin_for(name, phase.baseline_s + phase.duration_s)
                result.phases.append(await open_loop_phase(url, phase, arrivals_s))


@asynccontextmanager
async def _running(variant: Variant, options: InterferenceOptions) -> AsyncIterator[str]:
    """The URL of a server of this variant, ours for as long as the block lasts or another's."""
    if variant.url is not None:
        async with OpenAIClient(variant.url) as client:
            await client.pick_model(None)
        yield variant.url
        return
    port = free_port()
    options.log_dir.mkdir(parents=True, exist_ok=True)
    log_path = options.log_dir / f"{variant.name}.log"
    command = serve_command(options.model, port, variant.flags)
    async with ServerProcess(command, port, log_path) as server:
        yield server.url


def _chunk_flags(chunk_size: int | None) -> tuple[str, ...]:
    return () if chunk_size is None else ("--max-num-batched-tokens", str(chunk_size))
