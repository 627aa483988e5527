"""Workers change their roles while streams run and prompts come: a quiet time first, then the switches, then worse.

Answers are noted from a unified server that does nothing else. The server under test meets the same questions in a
quiet time (the same load, no switch) and while one worker after the other is given another role, each asked for over
HTTP and timed until the worker says that it has it. Beside, where gaps are not judged: two operators at once, every
role on every worker, and workers that are killed as they are asked.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from relevo.bench.arms.arm import Arm
from relevo.bench.arms.served import Served, served
from relevo.bench.client import OpenAIClient
from relevo.bench.leftovers import left_in_use
from relevo.bench.process_time import cpu_s, process_tree
from relevo.bench.roles.load import gaps_within, loaded
from relevo.bench.roles.questions import Asked, QuestionOptions, Questions
from relevo.bench.roles.report import RolesResult, StressCheck, Switched
from relevo.core.errors import SettingsError, StartError
from relevo.telemetry.progress import Progress

ROLES = ("prefill", "decode", "unified", "hybrid", "3:1", "1:3", "standby")
GIVE_UP_S = 10.0  # for a role that was asked for; arbitrary
READY_TIMEOUT_S = 120.0  # for a killed worker to be back; arbitrary, generous for a large model
SETTLE_S = 5.0  # of load before anything is measured: the streams begin one after the other. Arbitrary
_POLL_S = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class RolesOptions:
    model: str | None
    serve_flags: tuple[str, ...]  # of the server under test
    common_flags: tuple[str, ...]  # of it and of the quiet one
    num_switches: int
    interval_s: float  # from one switch to the next
    quiet_s: float
    has_stress: bool
    num_kills: int
    questions: QuestionOptions
    seed: int
    log_dir: Path

    def check(self) -> None:
        if self.questions.prompts_per_s <= 0:
            raise SettingsError(f"--prompts-per-s must be above 0, got {self.questions.prompts_per_s:g}")


async def switch_roles(options: RolesOptions, result: RolesResult, progress: Progress) -> None:
    """Fill `result`, part by part. Raises StartError if a server cannot be started or ends."""
    options.check()
    options.log_dir.mkdir(parents=True, exist_ok=True)
    result.num_wanted = options.num_switches
    questions = Questions(options.questions)
    progress.begin("starting the quiet server")
    quiet = Arm(name="quiet", flags=("--topology", "unified"))
    async with (
        served(quiet, options.model, options.common_flags, options.log_dir / "quiet.log") as server,
        OpenAIClient(server.url) as client,
    ):
        await questions.make(client)
        await questions.note_answers(client, progress)
    progress.begin("starting the server under test")
    tested = Arm(name="tested", flags=options.serve_flags)
    async with (
        served(tested, options.model, options.common_flags, options.log_dir / "server.log") as server,
        OpenAIClient(server.url) as client,
    ):
        run = _Run(options, questions, server, client, result, progress, random.Random(options.seed))
        await run.measure()
        if options.has_stress:
            await run.stress()


@dataclass(slots=True)
class _Run:
    options: RolesOptions
    questions: Questions
    server: Served
    client: OpenAIClient
    result: RolesResult
    progress: Progress
    rng: random.Random

    async def measure(self) -> None:
        options, result = self.options, self.result
        asked: list[Asked] = []
        try:
            async with loaded(self.client, self.questions, asked, options.seed):
                await asyncio.sleep(SETTLE_S)
                from_ns = time.monotonic_ns()
                self.progress.begin_for("quiet: the load without switches", options.quiet_s)
                await self._sleep(options.quiet_s)
                now_ns = time.monotonic_ns()
                result.quiet_gaps_s = [gap for _, gap in gaps_within(asked, from_ns, now_ns)]
                result.quiet_s = (now_ns - from_ns) / 1e9
                await self._switch_all(asked)
                self.progress.begin("waiting for what is under way")
        finally:
            for one in asked:
                result.num_asked[one.kind] = result.num_asked.get(one.kind, 0) + 1
            result.wrong = [f"{one.kind}: {one.wrong}" for one in asked if one.wrong]
        result.leftovers = await left_in_use(self.server.operator)

    async def _switch_all(self, asked: list[Asked]) -> None:
        options, result = self.options, self.result
        self.progress.begin("switches", options.num_switches, "switches")
        roles = await self.server.operator.roles()
        start_ns, cpu_began_s, server_began_s = time.monotonic_ns(), time.process_time(), self._server_cpu_s()
        before_ns = start_ns
        for number in range(options.num_switches):
            worker, role = self._next(roles, number)
            made = Switched(
                worker=worker, before=roles[worker], role=role, asked_at_s=(time.monotonic_ns() - start_ns) / 1e9
            )
            result.switches.append(made)
            made.effect_s = await self._switch(worker, role, made)
            roles[worker] = role if made.effect_s is not None else (await self.server.operator.roles())[worker]
            due_s = (number + 1) * options.interval_s - (time.monotonic_ns() - start_ns) / 1e9
            await self._sleep(max(0.0, due_s))
            now_ns = time.monotonic_ns()
            found = gaps_within(asked, before_ns, now_ns)
            made.longest_gap_s = max((gap for _, gap in found), default=0.0)
            result.switching_gaps += [((at_ns - start_ns) / 1e9, gap) for at_ns, gap in found]
            result.switching_s = (now_ns - start_ns) / 1e9
            result.generator_cpu = (time.process_time() - cpu_began_s) / result.switching_s
            result.server_cpu = max(0.0, self._server_cpu_s() - server_began_s) / result.switching_s
            before_ns = now_ns
            self.progress.advance()

    def _next(self, roles: Mapping[str, str], number: int) -> tuple[str, str]:
        """The next worker in turn, and a role that it does not have; one at least goes on to serve."""
        worker = sorted(roles)[number % len(roles)]
        others_stand_by = all(role == "standby" for name, role in roles.items() if name != worker)
        allowed = [role for role in ROLES if role != roles[worker] and not (others_stand_by and role == "standby")]
        return worker, self.rng.choice(allowed)

    async def _switch(self, worker: str, role: str, made: Switched | None = None) -> float | None:
        """Seconds until the worker says that it has it; None: it did not."""
        asked_ns = time.monotonic_ns()
        status, body = await self.server.operator.ask(worker, role, "a switch under load")
        if status != 202:
            if made is not None:
                made.refused = f"HTTP {status} {body}"[:200]
            return None
        while True:
            has_it = (await self.server.operator.roles()).get(worker) == role
            passed_s = (time.monotonic_ns() - asked_ns) / 1e9
            if has_it:
                return passed_s
            if passed_s > GIVE_UP_S:
                return None
            await asyncio.sleep(_POLL_S)

    # ---- worse ------------------------------------------------------------------------------------------------------

    async def stress(self) -> None:
        asked: list[Asked] = []
        checks = [
            StressCheck(name="every role on every worker"),
            StressCheck(name="two operators at once"),
            StressCheck(name="a worker killed as it is asked"),
        ]
        self.result.stress = checks
        answers = StressCheck(name="answers meanwhile")
        async with loaded(self.client, self.questions, asked, self.options.seed + 1):
            await self._every_role(checks[0])
            await self._two_operators(checks[1])
            await self._kills(checks[2])
            await self._make_all_serve()
        answers.num_done = len(asked)
        answers.wrong = [f"{one.kind} {one.wrong}" for one in asked if one.wrong]
        left = StressCheck(name="blocks and requests at the end", num_done=1)
        leftovers = await left_in_use(self.server.operator)
        left.wrong = [leftovers] if leftovers else []
        self.result.stress = [*checks, answers, left]

    async def _every_role(self, check: StressCheck) -> None:
        roles = await self.server.operator.roles()
        self.progress.begin(check.name, len(roles) * len(ROLES), "switches")
        for worker in sorted(roles):
            await self._make_all_serve()
            for role in ROLES:
                if await self._switch(worker, role) is None:
                    check.wrong.append(f"{worker} did not become {role}")
                check.num_done += 1
                self.progress.advance()

    async def _two_operators(self, check: StressCheck) -> None:
        """Both are answered, and the worker ends with one of both roles."""
        roles = await self.server.operator.roles()
        self.progress.begin(check.name, 20, "pairs")
        for number in range(20):
            worker = sorted(roles)[number % len(roles)]
            pair = self.rng.sample([role for role in ROLES if role != "standby"], 2)
            answers = await asyncio.gather(*(self.server.operator.ask(worker, role, "two at once") for role in pair))
            statuses = [status for status, _ in answers]
            if statuses != [202, 202]:
                check.wrong.append(f"{worker} {pair}: HTTP {statuses}")
            deadline_s = time.monotonic() + GIVE_UP_S
            while (found := (await self.server.operator.roles()).get(worker)) not in pair:
                if time.monotonic() > deadline_s:
                    check.wrong.append(f"{worker} is {found}, asked for {' and '.join(pair)}")
                    break
                await asyncio.sleep(_POLL_S)
            check.num_done += 1
            self.progress.advance()

    async def _kills(self, check: StressCheck) -> None:
        """It is restarted, and has the role that was asked for as it died."""
        self.progress.begin(check.name, self.options.num_kills, "kills")
        await self._make_all_serve()
        for number in range(self.options.num_kills):
            workers = {each["worker_id"]: each for each in await self.server.operator.workers()}
            worker = sorted(workers)[number % len(workers)]
            role = self.rng.choice([r for r in ROLES if r not in ("standby", workers[worker]["role"])])
            pid, epoch = workers[worker].get("pid"), workers[worker].get("epoch")
            if not pid:
                check.wrong.append(f"{worker} has no process id at /ready")
                return
            asking = asyncio.create_task(self.server.operator.ask(worker, role, "as it is killed"))
            await asyncio.sleep(self.rng.uniform(0.0, 0.02))
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            status, _ = await asking
            found = await self._back(worker, epoch)
            if found is None:
                check.wrong.append(f"{worker} was not back after {READY_TIMEOUT_S:.0f} s")
            elif status == 202 and found != role:
                check.wrong.append(f"{worker} came back as {found}, asked for {role}")
            check.num_done += 1
            self.progress.advance()

    async def _back(self, worker: str, epoch: int | None) -> str | None:
        """The role of the next incarnation, once it is ready; None: it does not come."""
        deadline_s = time.monotonic() + READY_TIMEOUT_S
        while time.monotonic() < deadline_s:
            self._need_server()
            for each in await self.server.operator.workers():
                if each["worker_id"] == worker and each["ready"] and each.get("epoch") != epoch:
                    return str(each["role"])
            await asyncio.sleep(0.1)
        return None

    async def _make_all_serve(self) -> None:
        for worker, role in (await self.server.operator.roles()).items():
            if role != "hybrid":
                await self._switch(worker, "hybrid")

    async def _sleep(self, seconds: float) -> None:
        """Raises StartError if the server ends meanwhile."""
        until_s = time.monotonic() + seconds
        while (left_s := until_s - time.monotonic()) > 0:
            self._need_server()
            await asyncio.sleep(min(left_s, 0.25))

    def _need_server(self) -> None:
        if (status := self.server.process.returncode) is not None:
            raise StartError(f"the server ended with status {status}; see {self.server.process.log_path}")

    def _server_cpu_s(self) -> float:
        try:
            return cpu_s(process_tree(self.server.process.pid))
        except OSError:  # a process of it has just ended
            return 0.0
