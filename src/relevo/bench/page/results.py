"""The JSON files that a page of figures is made of: `relevo bench engine`, `peers`, `gateway` and `start` with --json.

Owns what of them is read, and the refusal of what is none of them: another release's, another command's, or of a run
that was broken off. Fields that no page shows are not read.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import msgspec

from relevo.core.errors import SettingsError

Ranged = dict[str, float]  # "p50", "p99"


class Environment(msgspec.Struct, kw_only=True):
    command: list[str]
    started_at: str  # ISO 8601
    cpu_model: str
    cpu_features: list[str]
    num_usable_cpus: int
    versions: dict[str, str]


class Result(msgspec.Struct, kw_only=True, tag_field="kind"):
    """One file. `name` is the file's."""

    format: Literal[1]
    is_complete: bool
    environment: Environment
    name: str = ""


class Spread(msgspec.Struct):
    median: float
    least: float
    most: float


class EngineFacts(msgspec.Struct):
    model: str
    backend: str
    path: str
    dtype: str
    quantization: str | None
    kv_dtype: str
    activation_dtype: str
    cores: list[int]


class Prefill(msgspec.Struct):
    prompt_len: int
    tokens_per_s: Spread
    operations_per_s: float | None
    limit_operations_per_s: float | None
    limit_fraction: float | None


class Decode(msgspec.Struct):
    batch_size: int
    context: int
    step_s: Spread
    tokens_per_s: float
    bound_s: float | None
    bound_fraction: float | None
    operations_per_s: float | None
    limit_operations_per_s: float | None


class EngineReport(msgspec.Struct):
    facts: EngineFacts
    prefill: list[Prefill]
    decode: list[Decode]
    notes: list[str]


class EngineResult(Result, tag="engine", kw_only=True):
    report: EngineReport


class PeerServer(msgspec.Struct):
    name: str
    version: str
    faults: list[str]


class PeerComparison(msgspec.Struct):
    metric: str
    lower_is_better: bool
    medians: dict[str, float]
    best_peer: str | None
    ratios: dict[str, float]


class PeersReport(msgspec.Struct):
    servers: list[PeerServer]
    comparisons: list[PeerComparison]


class PeersResult(Result, tag="peers", kw_only=True):
    report: PeersReport


class Way(msgspec.Struct):
    name: str
    num_tokens: int
    num_failed: int
    cpu_us_per_token: float | None
    adds_ms: Ranged


class GatewayResult(Result, tag="gateway", kw_only=True):
    num_streams: int
    step_s: float
    ways: list[Way]


class Start(msgspec.Struct):
    topology: str
    first_token_s: Spread
    cpu_s: dict[str, float]  # by kind of process


class StartResult(Result, tag="start", kw_only=True):
    model: str
    rounds: int
    starts: list[Start]
    notes: list[str]


AnyResult = EngineResult | PeersResult | GatewayResult | StartResult
_AGAIN = "write it again with --json of `relevo bench engine`, `peers`, `gateway` or `start`"


def read_results(folder: Path) -> Sequence[AnyResult]:
    """Of all `*.json` of a folder, by name. Raises SettingsError for the first that is none, and for a folder without
    any."""
    paths = sorted(folder.glob("*.json"))
    if not paths:
        raise SettingsError(f"{folder} holds no *.json; {_AGAIN} {folder}/NAME.json")
    return [_read(path) for path in paths]


def _read(path: Path) -> AnyResult:
    try:
        result: AnyResult = msgspec.json.decode(path.read_bytes(), type=AnyResult)
    except OSError as error:
        raise SettingsError(f"{path} cannot be read: {error.strerror or error}") from error
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path} is no result that this release knows ({error}); {_AGAIN}") from error
    if not result.is_complete:
        raise SettingsError(f"{path} is of a run that was interrupted: figures of a part would pass for all; {_AGAIN}")
    result.name = path.name
    return result
