"""Sessions of several turns against one server per routing variant, in turns: who computes how much of it again?

Owns the replay: so many sessions at a time, each sends its next turn when the answer to the last one is complete and
the recorded gap (scaled and cut) has passed. Every variant gets a fresh server with an empty cache, and the same
prompts. Prefill tokens per worker come from the server's own counters.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from relevo.bench.client import OpenAIClient
from relevo.bench.prompt_source import PromptSource
from relevo.bench.records import ClientRecord, Endpoint, PlannedRequest
from relevo.bench.server_process import ServerProcess, free_port, serve_command
from relevo.bench.sessions.report import SessionsReport, VariantRun
from relevo.client.prometheus_text import samples
from relevo.core.errors import SettingsError, StartError
from relevo.telemetry.progress import Progress
from relevo.workload.sessions import Session, Turn, to_token_ids

AFFINITY_HEADER = "x-session-affinity"
PREFILL_COUNTER = "relevo:prefill_tokens_total"
WITH_HEADER = "+header"


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionsOptions:
    model: str
    variants: tuple[str, ...]  # a routing policy, with `+header` if clients name their sessions
    serve_flags: tuple[str, ...] = ()
    url: str | None = None  # a running server: no server is started, the policies are its own
    concurrency: int = 8  # sessions at a time
    rounds: int = 1
    gap_scale: float = 1.0
    max_gap_s: float = 1.0
    max_output_tokens: int = 32
    api_key: str | None = None
    log_dir: Path = field(default_factory=Path)


async def compare_variants(
    options: SessionsOptions, sessions: Sequence[Session], report: SessionsReport, progress: Progress
) -> None:
    """Fill `report`, round by round, variant by variant. Raises StartError and SettingsError."""
    num_turns = sum(len(session.turns) for session in sessions)
    progress.begin("", options.rounds * len(options.variants) * num_turns, "turns")
    for round_index in range(options.rounds):
        for variant in options.variants:
            progress.rename(f"round {round_index + 1} of {options.rounds}: {variant}")
            if options.url is not None:
                run = await _replay(options, variant, options.url, sessions, progress)
            else:
                async with _server(options, variant, round_index) as server:
                    run = await _replay(options, variant, server.url, sessions, progress)
            report.runs.append(run)


def _server(options: SessionsOptions, variant: str, round_index: int) -> ServerProcess:
    port = free_port()
    flags = (*options.serve_flags, "--routing-policy", variant.removesuffix(WITH_HEADER))
    log_path = options.log_dir / f"{variant}-{round_index}.log"
    return ServerProcess(serve_command(options.model, port, flags), port, log_path)


async def _replay(
    options: SessionsOptions, variant: str, url: str, sessions: Sequence[Session], progress: Progress
) -> VariantRun:
    async with OpenAIClient(url, api_key=options.api_key) as client:
        model = await client.pick_model(None)
        source = await PromptSource.open(client, model, Endpoint.COMPLETIONS, seed=0)
        if source.token_ids is None:
            raise StartError(f"{url} has no /tokenize, which tells the token ids that prompts are made of")
        replay = _Replay(options, client, model, source.token_ids, variant.endswith(WITH_HEADER), progress)
        before = await _prefill_tokens(client)
        waiting = list(reversed(sessions))
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(options.concurrency):
                    group.create_task(replay.sessions_in_turn(waiting))
        finally:
            computed = await _prefill_tokens(client)
    per_worker = {worker: tokens - before.get(worker, 0.0) for worker, tokens in computed.items()}
    return VariantRun(variant=variant, records=replay.records, prefill_tokens=per_worker)


@dataclass(slots=True)
class _Replay:
    options: SessionsOptions
    client: OpenAIClient
    model: str
    vocabulary: Sequence[int]
    names_sessions: bool
    progress: Progress
    records: list[ClientRecord] = field(default_factory=list)

    async def sessions_in_turn(self, waiting: list[Session]) -> None:
        """Take one session after the other from the end of `waiting`."""
        while waiting:
            session = waiting.pop()
            for turn in session.turns:
                await asyncio.sleep(min(turn.gap_s * self.options.gap_scale, self.options.max_gap_s))
                await self._send(session, turn)

    async def _send(self, session: Session, turn: Turn) -> None:
        num_output = min(turn.num_output_tokens, self.options.max_output_tokens)
        planned = PlannedRequest(
            prompt=to_token_ids(turn.prompt, self.vocabulary),
            num_input_tokens=len(turn.prompt),
            max_tokens=num_output,
        )
        record = ClientRecord(index=len(self.records), num_wanted_input_tokens=len(turn.prompt), max_tokens=num_output)
        self.records.append(record)
        await self.client.stream(
            planned,
            record,
            model=self.model,
            endpoint=Endpoint.COMPLETIONS,
            extra={"temperature": 0, "ignore_eos": True},
            headers={AFFINITY_HEADER: session.session_id} if self.names_sessions else {},
        )
        self.progress.advance()
        if record.error in ("connect", "http_401", "http_404"):
            raise SettingsError(f"{self.client.url} does not answer: {record.error} {record.error_detail}")


async def _prefill_tokens(client: OpenAIClient) -> dict[str, float]:
    """Prompt tokens computed so far per worker; empty for a server that does not tell."""
    found: dict[str, float] = {}
    for sample in samples(await client.metrics_text()):
        if sample.name == PREFILL_COUNTER:
            worker = sample.labels.get("worker", "")
            found[worker] = found.get(worker, 0.0) + sample.value
    return found
