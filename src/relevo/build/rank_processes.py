"""The rank processes of a worker: starts them, waits until they are ready, and ends with any of them.

They are the worker's children and tied to it as it is tied to its supervisor (`wire.leash`): whatever ends the worker,
at whatever instant, ends them. One that ends by itself has left KV unwritten that the scheduler counts on, so the
worker ends too, at once, and its supervisor starts all of them again.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import signal
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NoReturn

import msgspec

from relevo.build.configs import RankConfig, WorkerConfig
from relevo.build.rank_links import join_ranks, open_ends
from relevo.core.errors import StartError
from relevo.engine.models.spec import Model
from relevo.engine.ranks.collectives import RankLost
from relevo.engine.ranks.rank_cores import RankCores
from relevo.engine.ranks.rank_group import RankGroup
from relevo.engine.ranks.ranked_model import RankedModel
from relevo.engine.ranks.shared_memory import RankEnds
from relevo.wire.child_process import Lifeline, python_command, python_environment
from relevo.wire.server import WireServer
from relevo.wire.status import Status

log = logging.getLogger("relevo.engine")

EXIT_RANK_LOST = 4
_END_S = 5.0  # arbitrary: a rank that waits for a step ends at once
_READ_BYTES = 4096


@dataclass(slots=True)
class _RankProcess:
    rank: int
    process: subprocess.Popen[bytes]
    lifeline: Lifeline
    status_fd: int  # where its statuses arrive; closed on its side when it ends
    is_ready: bool = False
    unread: bytes = b""


@dataclass(slots=True)
class RankProcesses:
    """All ranks but the last, which is this process."""

    worker_id: str
    own_layers: range
    group: RankGroup  # of the last stage, which this process is the last of
    _processes: list[_RankProcess]

    @classmethod
    def start(cls, config: WorkerConfig, stages: Sequence[range], model_hash: str) -> RankProcesses:
        """`config.arena_fd`: of the arena that all of them map. Raises StartError."""
        of_stages, size = ", ".join(f"{each.start}-{each.stop - 1}" for each in stages), config.group_size
        log.info("ranks compute layers %s%s", of_stages, f", each stage {size} of them" if size > 1 else "")
        try:
            ends = open_ends(config)
            *others, own = range(config.num_ranks)
            processes = [_start(config, rank, stages[rank // size], ends[rank], model_hash) for rank in others]
            group = RankGroup(join_ranks(config, own, ends[own]), size)
            os.close(ends[own].memory_fd)
        except OSError as error:
            raise StartError(f"the ranks of {config.worker_id} cannot be started: {error.strerror or error}") from error
        return cls(config.worker_id, stages[-1], group, processes)

    def wait_until_ready(self, report: Callable[[Status], None]) -> None:
        """Raises StartError with the reason of one that cannot start."""
        while unready := [each for each in self._processes if not each.is_ready]:
            report(Status(kind="progress", message=f"waiting for rank {unready[0].rank}"))
            poll = select.poll()
            for each in unready:
                poll.register(each.status_fd, select.POLLIN)
            readable = {fd for fd, _ in poll.poll()}
            for each in unready:
                if each.status_fd in readable:
                    self._read(each)

    def model(self, last: Model, cores: RankCores) -> RankedModel:
        """`last`: of the worker's own layers, its share of them."""
        return RankedModel(last, self.group, cores, self._lose)

    def watch(self, server: WireServer) -> None:
        """From now on the end of one is seen between two steps too."""
        for each in self._processes:
            server.watch(each.status_fd, partial(self._read, each))

    def close(self) -> None:
        """No step is being computed."""
        self.group.collectives.close()
        for each in self._processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                each.process.wait(_END_S)
            each.process.kill()
            each.process.wait()
            each.lifeline.close()
            os.close(each.status_fd)
        self._processes.clear()

    def _read(self, each: _RankProcess) -> None:
        data = os.read(each.status_fd, _READ_BYTES)
        if not data:
            self._lose(RankLost(each.rank))
        *lines, each.unread = (each.unread + data).split(b"\n")
        for line in lines:
            status = msgspec.json.decode(line, type=Status)
            if status.kind == "failed":
                raise StartError(status.message)
            each.is_ready = each.is_ready or status.kind == "ready"

    def _lose(self, lost: RankLost) -> NoReturn:
        seen = next(each for each in self._processes if each.rank == lost.rank)
        with contextlib.suppress(subprocess.TimeoutExpired):
            seen.process.wait(_END_S)
        # One that has ended because of another one, which it was waiting for, says 0.
        first = next((each for each in self._processes if each.process.poll()), seen)
        log.error(
            "rank %d of %s has ended (%s): this worker ends with it, to be started again with all its ranks",
            first.rank,
            self.worker_id,
            _why(first.process.returncode),
        )
        logging.shutdown()  # lines wait in a queue
        os._exit(EXIT_RANK_LOST)  # nothing more may be sent of what it computed


def _start(config: WorkerConfig, rank: int, layers: range, ends: RankEnds, model_hash: str) -> _RankProcess:
    lifeline = Lifeline()
    read_fd, write_fd = os.pipe()
    told = RankConfig(
        worker=msgspec.structs.replace(config, kv_secret="", status_fd=-1, life_fd=-1),
        rank=rank,
        layers=(layers.start, layers.stop),
        model_hash=model_hash,
        memory_fd=ends.memory_fd,
        socket_fds=dict(ends.socket_fds),
        status_fd=write_fd,
        life_fd=lifeline.read_fd,
    )
    passed = (lifeline.read_fd, write_fd, config.arena_fd, ends.memory_fd, *ends.socket_fds.values())
    process = subprocess.Popen(
        python_command("relevo.cli.child", "rank", str(lifeline.read_fd)),
        stdin=subprocess.PIPE,
        pass_fds=passed,
        env=python_environment(),
    )
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError):  # it has ended: its status pipe says so
        process.stdin.write(msgspec.json.encode(told))
        process.stdin.close()
    lifeline.passed()
    os.close(write_fd)
    ends.close_sockets()
    return _RankProcess(rank, process, lifeline, read_fd)


def _why(code: int | None) -> str:
    if code is None:
        return "it does not go away"
    return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit status {code}"
