"""Who may work next when work is measured in bytes: so many jobs and bytes at once, the others wait in a bounded line.

Tenants take turns; one tenant's jobs keep their order. A job larger than all bytes together runs when nothing else
does, so it waits but is never stuck. Pure; knows neither threads nor what the work is.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

Job = TypeVar("Job", bound=Hashable)


LEFT_FOR_OTHERS = 8  # arbitrary: an eighth


def takes_too_much(owner: str, num_own: int, num_free: int, maximum: int) -> bool:
    """With what it asks for: an owner that has more than what is free leaves a part of the whole to others, who, each
    by the same rule, always find some. Where there are no owners (an empty name) none is asked to."""
    return owner != "" and num_own > num_free and num_free < maximum // LEFT_FOR_OTHERS


@dataclass(frozen=True, slots=True, kw_only=True)
class ByteLimits:
    max_working_jobs: int
    max_working_bytes: int
    max_waiting_jobs: int
    max_waiting_bytes: int  # one job may always wait


@dataclass(slots=True)
class ByteLine(Generic[Job]):
    limits: ByteLimits
    _waiting: OrderedDict[str, deque[Job]] = field(default_factory=OrderedDict)  # by tenant; whose turn it is first
    _num_bytes: dict[Job, int] = field(default_factory=dict)  # of all, waiting or at work
    _working: set[Job] = field(default_factory=set)
    num_working_bytes: int = 0
    num_waiting_bytes: int = 0

    @property
    def num_waiting(self) -> int:
        return len(self._num_bytes) - len(self._working)

    def enter(self, job: Job, tenant: str, num_bytes: int) -> str | None:
        """Put it in line. Otherwise why not, in one sentence; then nothing of it is kept."""
        limits = self.limits
        if self.num_waiting >= limits.max_waiting_jobs:
            return f"{self.num_waiting} long texts wait to be read already, which is the limit."
        if self.num_waiting and self.num_waiting_bytes + num_bytes > limits.max_waiting_bytes:
            return f"With this one more than {limits.max_waiting_bytes} bytes of text would wait to be read."
        if self.num_waiting and self._takes_too_much(tenant, num_bytes):
            return "As many long texts of your keys wait to be read as may wait beside those of others."
        self._num_bytes[job] = num_bytes
        self.num_waiting_bytes += num_bytes
        self._waiting.setdefault(tenant, deque()).append(job)
        return None

    def _takes_too_much(self, tenant: str, num_bytes: int) -> bool:
        limits, own = self.limits, self._waiting.get(tenant, ())
        num_own_bytes = sum(self._num_bytes[job] for job in own) + num_bytes
        num_free_bytes = limits.max_waiting_bytes - self.num_waiting_bytes - num_bytes
        num_free_jobs = limits.max_waiting_jobs - self.num_waiting - 1
        return takes_too_much(tenant, num_own_bytes, num_free_bytes, limits.max_waiting_bytes) or takes_too_much(
            tenant, len(own) + 1, num_free_jobs, limits.max_waiting_jobs
        )

    def next(self) -> Job | None:
        """The job whose turn it is, if there is room for it: from now on it is at work."""
        if not self._waiting:
            return None
        tenant, jobs = next(iter(self._waiting.items()))
        num_bytes = self._num_bytes[jobs[0]]
        is_over = self.num_working_bytes + num_bytes > self.limits.max_working_bytes
        if len(self._working) >= self.limits.max_working_jobs or (self._working and is_over):
            return None
        job = jobs.popleft()
        del self._waiting[tenant]
        if jobs:
            self._waiting[tenant] = jobs  # behind the others
        self._working.add(job)
        self.num_waiting_bytes -= num_bytes
        self.num_working_bytes += num_bytes
        return job

    def leave(self, job: Job) -> None:
        """It is done, or waits no longer. Idempotent."""
        num_bytes = self._num_bytes.pop(job, None)
        if num_bytes is None:
            return
        if job in self._working:
            self._working.remove(job)
            self.num_working_bytes -= num_bytes
            return
        self.num_waiting_bytes -= num_bytes
        for tenant, jobs in list(self._waiting.items()):
            if job in jobs:
                jobs.remove(job)
                if not jobs:
                    del self._waiting[tenant]
