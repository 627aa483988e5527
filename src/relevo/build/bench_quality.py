"""Composition root of `relevo bench quality`: forwards of whole windows, for each engine that is compared."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from msgspec.structs import replace

from relevo.bench.quality.run import Forward, Logits
from relevo.build.backend import make_ops
from relevo.build.configs import WorkerConfig
from relevo.build.model import kv_layout, load_model
from relevo.build.serve import plan_serving
from relevo.core.errors import SettingsError
from relevo.core.ids import RequestId, TokenId
from relevo.core.plan import ScheduledRow
from relevo.core.request import EngineRequest, SamplingParams
from relevo.engine.inputs import StepInputs, pack_rows
from relevo.engine.loaders.resolve import load_model_files
from relevo.engine.loaders.tokenizer_files import load_tokenizer_files
from relevo.engine.ops.cache_groups import num_state_groups
from relevo.policy.worker.table_rules import table_rules
from relevo.settings import Settings
from relevo.telemetry.progress import SILENT, Progress
from relevo.vocabulary.model_vocabulary import backend_of

_MOST_GROUPS = 64  # KV groups that a plan has room for; arbitrary

CORPUS = Path(__file__).parents[1] / "bench" / "quality" / "varied.txt"


def tokens_of(settings: Settings, text: Path) -> tuple[list[TokenId], TokenId | None]:
    """The model's tokens of a text without special ones, and the begin-of-sequence token if the model wants one.

    Raises StartError.
    """
    try:
        content = text.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"cannot read the text {text}: {error}") from error
    files = load_tokenizer_files(settings.model, revision=settings.revision, download_dir=settings.download_dir)
    tokenizer = backend_of(files)
    begin = tokenizer.token_to_id(files.bos_token) if files.add_bos_token and files.bos_token else None
    return list(tokenizer.encode(content, add_special_tokens=False).ids), begin


def make_forward(settings: Settings, context: int, progress: Progress = SILENT) -> tuple[str, Forward]:
    """What it is, and a function from a window of at most `context` tokens to logits. Raises StartError."""
    blocks = -(-context // settings.block_size)
    many = settings.model_copy(update={"topology": "unified", "num_kv_blocks": _MOST_GROUPS * blocks})
    planned = plan_serving(many).workers[0]
    longest = min(planned.max_model_len, blocks * settings.block_size)
    config = replace(planned, num_blocks=blocks, max_model_len=longest)
    progress.begin(f"loading {_name(config)}", unit="bytes")
    return _name(config), PagedForward(config, progress.reach)


class PagedForward:
    """One window at a time in its own cache of one row, in chunks of the worker's longest step. `config.num_blocks`: of
    each KV group."""

    def __init__(self, config: WorkerConfig, progress: Callable[[int, int], None]) -> None:
        files = load_model_files(config.model, revision=config.revision, download_dir=config.download_dir)
        layout = kv_layout(files.config, files.model_hash, config.kv_cache_dtype, config.block_size)
        ops = make_ops(config)
        self._model = load_model(config, files, ops, progress)
        self._block_size, self._chunk_size = config.block_size, config.max_num_batched_tokens
        self._num_state_groups = num_state_groups(layout)
        each = max(config.num_blocks, *(rule.num_state_blocks for rule in table_rules(layout)), 0)
        num_blocks = each * len(layout.groups)
        firsts = range(0, num_blocks, each)
        self._block_ids, *self._more = [list(range(first, first + each)) for first in firsts]
        self._memory = bytearray(num_blocks * layout.bytes_per_block)
        self._kv = ops.kv_cache(layout, num_blocks, memoryview(self._memory))

    def __call__(self, token_ids: Sequence[TokenId], positions: Sequence[int]) -> Logits:
        parts = []
        for start in range(0, len(token_ids), self._chunk_size):
            chunk = list(token_ids[start : start + self._chunk_size])
            asked = [position - start for position in positions if start <= position < start + len(chunk)]
            logits = self._model.forward(self._pack(chunk, start), self._kv, asked)
            parts.append(np.array(logits.values))  # the backend's own memory until the next chunk
        return np.concatenate([part[:, : self._model.config.vocab_size] for part in parts if len(part)])

    def _row(self, token_ids: list[TokenId], start: int) -> ScheduledRow:
        request = EngineRequest(
            request_id=RequestId("window"), prompt_token_ids=(0,), sampling=SamplingParams(max_tokens=1, seed=0)
        )
        return ScheduledRow(request, token_ids, start, self._block_ids, more_block_ids=tuple(self._more))

    def _pack(self, token_ids: list[TokenId], start: int) -> StepInputs:
        return pack_rows([self._row(token_ids, start)], self._block_size, self._num_state_groups)


def _name(config: WorkerConfig) -> str:
    parts = [" ".join(filter(None, (config.backend, config.dtype, config.quantization)))]
    has_integers = config.dtype == "auto" or config.quantization is not None
    if config.backend == "native" and (has_integers or config.activation_dtype == "bfloat16"):
        parts.append(f"inputs {config.activation_dtype}")
    return ", ".join((*parts, f"KV {config.kv_cache_dtype}"))
