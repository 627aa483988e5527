"""Opens traces: a file (plain or gzip), a ServeGen folder or archive. The only module here that touches files.

Mistakes are SettingsErrors of one sentence that names file and line.
"""

from __future__ import annotations

import random
import tarfile
import zlib
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from gzip import GzipFile
from io import TextIOWrapper
from itertools import chain, islice
from lzma import LZMAError
from pathlib import Path
from typing import TextIO

from relevo.core.errors import SettingsError
from relevo.workload.requests import Workload, WorkloadRequest
from relevo.workload.timing import in_order
from relevo.workload.traces import fleet_cdf, servegen
from relevo.workload.traces.formats import TraceFormat, read_rows, recognise
from relevo.workload.traces.rows import Tally, TraceError, whole_sessions

_GZIP_MAGIC = b"\x1f\x8b"
# What a file may ask of memory: one that never ends, or unpacks to a thousand times its size, is refused. Arbitrary.
MAX_LINE_CHARS = 2**26
MAX_MEMBER_BYTES = 2**28  # of a ServeGen folder or archive
MAX_REQUESTS = 20_000_000
NUM_DRAWN = 1000  # requests of a distribution, which has no end, where no limit is given; arbitrary


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """How to read a trace. From `start_s` on only what is drawn rather than read is concerned."""

    format: TraceFormat | None = None  # None: by its content
    block_size: int | None = None  # tokens per hash id; None: what the format says
    skip: int = 0  # leave out so many requests at the start
    limit: int | None = None  # read no more than so many
    part: str | None = None  # of several: of ServeGen such as reason/deepseek-r1, of Relevo's own files a model
    start_s: float = 0.0  # ServeGen: from which time on
    duration_s: float = 3600.0  # ServeGen: for how long
    output_fraction: float = 0.2  # fleet CDF: of a request's tokens; arbitrary
    seed: int = 0


def read_trace_file(path: Path, options: ReadOptions = ReadOptions()) -> Workload:
    """The requests of a trace in the order of arrival, times counted from the first one. Raises SettingsError."""
    tally = Tally()
    stop = None if options.limit is None else options.skip + options.limit
    try:
        with closing(_requests(path, options, tally)) as stream:
            requests = whole_sessions(_bounded(islice(stream, options.skip, stop)), tally)
    except TraceError as error:
        raise SettingsError(f"{path}:{error.line}: {error.problem}") from error
    except (OSError, EOFError, tarfile.TarError, zlib.error, LZMAError) as error:
        raise SettingsError(
            f"cannot read the trace {path}: {error}; check that it is there, readable and whole"
        ) from error
    except UnicodeDecodeError as error:
        raise SettingsError(f"{path} is no text ({error.reason}); give a trace of {_format_names()}") from error
    if not requests:
        raise SettingsError(f"the trace {path} holds no requests where it was read; give another one, or skip less")
    return Workload(requests=in_order(requests), notes=tuple(f"{count:,} {what}" for what, count in tally.items()))


def _requests(path: Path, options: ReadOptions, tally: Tally) -> Generator[WorkloadRequest]:
    if path.is_dir() or (path.is_file() and tarfile.is_tarfile(path)):
        clients = _servegen_clients(path, options)
        yield from servegen.draw_requests(clients, options.start_s, options.start_s + options.duration_s, options.seed)
        return
    with _opened(path) as file:
        read_lines = _lines(file)
        first_lines = _through_first_row(read_lines)
        trace_format = options.format or recognise(first_lines[-1] if first_lines else "")
        lines = chain(first_lines, read_lines)
        if trace_format is None or trace_format is TraceFormat.SERVEGEN:
            raise TraceError(max(1, len(first_lines)), f"is of no known format; expected a file of {_format_names()}")
        if trace_format is TraceFormat.FLEET_CDF:
            yield from _drawn_of_cdf(_document(lines), options, tally)
        else:
            yield from read_rows(trace_format, lines, tally, options.block_size, options.part)


def _bounded(requests: Iterable[WorkloadRequest]) -> Iterator[WorkloadRequest]:
    for index, request in enumerate(requests):
        if index == MAX_REQUESTS:
            raise TraceError(1, f"more than {MAX_REQUESTS:,} requests; read a part of them with --num-requests")
        yield request


@contextmanager
def _opened(path: Path) -> Iterator[TextIO]:
    """Opened once: what a pipe has given does not come again."""
    with path.open("rb") as file:
        binary = GzipFile(fileobj=file) if file.peek(2)[:2] == _GZIP_MAGIC else file
        with TextIOWrapper(binary, encoding="utf-8-sig") as text:
            yield text


def _lines(file: TextIO) -> Iterator[str]:
    number = 0
    while line := file.readline(MAX_LINE_CHARS + 1):
        number += 1
        if len(line) > MAX_LINE_CHARS:
            raise TraceError(number, f"more than {MAX_LINE_CHARS:,} characters; expected one request a line")
        yield line


def _document(lines: Iterable[str]) -> str:
    """All lines together, which are no more than one may be."""
    read, num_chars = list[str](), 0
    for number, line in enumerate(lines, start=1):
        read.append(line)
        num_chars += len(line)
        if num_chars > MAX_LINE_CHARS:
            raise TraceError(
                number, f"a distribution of more than {MAX_LINE_CHARS:,} characters; expected fewer points"
            )
    return "".join(read)


def _through_first_row(lines: Iterable[str]) -> list[str]:
    """The lines up to the first one that is not empty."""
    read = []
    for line in lines:
        read.append(line)
        if line.strip():
            break
    return read


def _drawn_of_cdf(text: str, options: ReadOptions, tally: Tally) -> Iterator[WorkloadRequest]:
    totals = fleet_cdf.read_cdf(text)
    num_requests = options.limit or NUM_DRAWN
    tally[f"requests are drawn, and {options.output_fraction:.0%} of their tokens taken to be output"] = num_requests
    drawn = fleet_cdf.draw_requests(totals, options.output_fraction, random.Random(f"cdf:{options.seed}"))
    return islice(drawn, options.skip + num_requests)


def _servegen_clients(path: Path, options: ReadOptions) -> list[servegen.Client]:
    """The clients of the part that was asked for, in the order of their names, those without requests left out."""
    parts: dict[str, dict[str, servegen.Client]] = {}
    for name, text in _servegen_files(path):
        part, _, file_name = name.rpartition("/")
        number = file_name.removesuffix(servegen.TRACE_SUFFIX).removesuffix(servegen.DATASET_SUFFIX)
        clients = parts.setdefault(part.removeprefix("data/"), {})
        if options.part is not None and not part.endswith(options.part):
            continue
        client = clients.setdefault(number, servegen.Client(number))
        try:
            if file_name.endswith(servegen.TRACE_SUFFIX):
                lines = text.splitlines()
                client.windows = servegen.read_rates(lines, options.start_s, options.start_s + options.duration_s)
            else:
                client.lengths_from_s, client.lengths = servegen.read_lengths(text)
        except TraceError as error:
            raise SettingsError(f"{path}/{name}:{error.line}: {error.problem}") from error
    chosen = [clients for part, clients in parts.items() if options.part is None or part.endswith(options.part)]
    if len(chosen) != 1:
        raise SettingsError(
            f"{path} holds {', '.join(sorted(parts)) or 'no ServeGen client (chunk-N-trace.csv)'};"
            f" {'choose one of them with --trace-part' if parts else 'give a folder or archive of ServeGen'}"
        )
    known = sorted(chosen[0].items())
    return [client for _, client in known if client.windows and client.lengths]


def _servegen_files(path: Path) -> Iterator[tuple[str, str]]:
    """(name, text) of the files of all clients, one after the other."""
    suffixes = (servegen.TRACE_SUFFIX, servegen.DATASET_SUFFIX)
    if path.is_dir():
        for file in sorted(path.rglob("chunk-*")):
            if file.name.endswith(suffixes):
                _check_size(path, file.name, file.stat().st_size)
                yield file.relative_to(path).as_posix(), file.read_text(encoding="utf-8")
        return
    with tarfile.open(path) as archive:
        for member in archive:
            content = archive.extractfile(member) if member.isfile() and member.name.endswith(suffixes) else None
            if content is not None:
                _check_size(path, member.name, member.size)
                yield member.name.removeprefix("./"), content.read().decode("utf-8")


def _check_size(path: Path, name: str, num_bytes: int) -> None:
    if num_bytes > MAX_MEMBER_BYTES:
        raise SettingsError(f"{path}/{name} has {num_bytes:,} bytes; a ServeGen file has at most {MAX_MEMBER_BYTES:,}")


def _format_names() -> str:
    return ", ".join(TraceFormat)
