"""What a look at a machine finds, before anything is made of it: plain facts, one group for each thing looked at."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFacts:
    native_version: str = ""  # empty: the kernels are not installed
    cpu_path: str = ""  # the instructions that they would use
    cpu_reason: str = ""
    available_paths: tuple[str, ...] = ()
    forced_path: str = ""  # by the environment
    problem: str = ""  # why they cannot be used
    torch_version: str = ""
    compiler: str = ""
    has_python_headers: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreFacts:
    cores: tuple[int, ...]  # that may be used
    num_online: int
    num_physical: int = 0  # behind `cores`; 0: not told
    topology: str = ""  # what `auto` chooses
    topology_reason: str = ""
    limit_notes: tuple[str, ...] = ()  # of a container
    governor: str = ""  # how clock rates are chosen, where the system tells


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryFacts:
    available_bytes: int
    limited_by: str = ""
    huge_pages: str = ""  # always, madvise, never; empty: the kernel has none
    arena_pages: str = ""  # of a KV arena that workers share, in words
    shm_bytes: int | None = None  # /dev/shm


@dataclass(frozen=True, slots=True, kw_only=True)
class PortFacts:
    host: str
    port: int
    problem: str = ""  # why it cannot be listened on
    holder: str = ""  # the command that listens there
    holder_pid: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DataFacts:
    """The usage ledger and the keys."""

    location: str = ""  # a file, `memory`, or another database
    problem: str = ""
    is_file: bool = False
    exists: bool = False
    num_keys: int = 0
    num_usable_keys: int = 0
    mode: int = 0
    is_ours: bool = True
    free_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    name: str
    path: str = ""
    problem: str = ""
    is_downloaded_first: str = ""  # from where, at the first start
    weights_bytes: int = 0
    free_bytes: int | None = None  # where it would be downloaded to


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeFacts:
    relevo_version: str
    python_version: str
    is_linux: bool
    descriptors: int  # that a process may have at most
    socket_path_chars: int = 0  # of the longest socket in the temporary folder
    temporary_folder: str = ""
    temporary_problem: str = ""
    unix_time_s: float = 0.0
    newest_file_s: float = 0.0  # when a file of this installation was written; the clock cannot be before it
    clock_source: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerFacts:
    url: str
    problem: str = ""
    status: str = ""  # as /health says
    reason: str = ""
    models: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineFacts:
    runtime: RuntimeFacts
    engine: EngineFacts
    cores: CoreFacts
    memory: MemoryFacts
    port: PortFacts
    data: DataFacts
    model: ModelFacts
    server: ServerFacts | None = None
    settings_problem: str = ""
