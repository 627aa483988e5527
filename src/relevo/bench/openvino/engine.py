"""OpenVINO GenAI as this server needs it: continuous batching over one model, tokens in, tokens out.

The only module that names the library, which is installed apart (`pip install openvino-genai`) and imported when an
engine is made. Knows no HTTP. Source: the interface of `openvino_genai.ContinuousBatchingPipeline`, release 2026.4.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from relevo.core.errors import SettingsError, StartError
from relevo.core.ids import TokenId

MODEL_FILE, TOKENIZER_FILE = "openvino_model.xml", "openvino_tokenizer.xml"
_FINISH_REASONS = {"STOP": "stop", "LENGTH": "length"}


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    model: Path  # a folder that OpenVINO's export wrote, or a GGUF file
    device: str = "CPU"
    num_threads: int | None = None  # None: as the library decides
    max_num_batched_tokens: int = 512  # of one step
    kv_cache_gb: int = 1
    properties: Mapping[str, str] = field(default_factory=dict)  # of the device, by OpenVINO's names

    def check(self) -> None:
        """Raise SettingsError for a model that the library cannot read. Looks at names, not into files."""
        model = self.model
        if not model.exists():
            raise SettingsError(f"{model} does not exist; give a folder of an OpenVINO model, or a GGUF file")
        if model.is_file():
            if model.suffix != ".gguf":
                raise SettingsError(f"{model} is a file and no GGUF; give the folder that holds {MODEL_FILE}")
            return
        if not (model / MODEL_FILE).exists():
            export = f"optimum-cli export openvino --model {model} --weight-format int8 OUT"
            hint = f"make one with `{export}`" if (model / "config.json").exists() else "give the folder of an export"
            raise SettingsError(f"{model} holds no {MODEL_FILE}; {hint}")
        if not (model / TOKENIZER_FILE).exists():
            raise SettingsError(
                f"{model} holds no {TOKENIZER_FILE}; run "
                f"`pip install openvino-tokenizers` and export the model again, which then writes it"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    max_tokens: int
    ignore_eos: bool = False
    temperature: float = 1.0  # 0: the most likely token
    top_p: float = 1.0
    seed: int | None = None


@dataclass(frozen=True, slots=True)
class Output:
    """What a step brought for one request. `finish_reason`: of the last one."""

    token_ids: Sequence[TokenId]
    finish_reason: str | None


class Generation:
    """One request under way in the library."""

    def __init__(self, handle: Any) -> None:
        self._handle = handle

    def outputs(self) -> Iterator[Output]:
        """Those that were not read."""
        while self._handle.can_read():
            for output in self._handle.read().values():
                yield Output(list(output.generated_ids), _FINISH_REASONS.get(output.finish_reason.name))

    @property
    def is_given_up(self) -> bool:
        """By the library, as its cache has no room for the request."""
        return bool(self._handle.get_status().name == "IGNORED")

    def cancel(self) -> None:
        self._handle.cancel()


class OpenVinoEngine:
    """A loaded model. Not for several threads: what it is asked holds the interpreter until it is done."""

    def __init__(self, options: EngineOptions) -> None:
        """Loads and compiles the model. Raises SettingsError (no library, no model), StartError."""
        options.check()
        self._library, self._tensors = _library("openvino_genai"), _library("openvino")
        self.version = str(self._library.__version__)
        scheduler = self._library.SchedulerConfig()
        scheduler.max_num_batched_tokens = options.max_num_batched_tokens
        scheduler.cache_size = options.kv_cache_gb
        scheduler.enable_prefix_caching = False
        properties: dict[str, Any] = dict(options.properties)
        if options.num_threads is not None:
            properties["INFERENCE_NUM_THREADS"] = options.num_threads
        make = self._library.ContinuousBatchingPipeline
        try:
            self._pipeline = make(str(options.model), scheduler, options.device, properties)
        except RuntimeError as error:  # the library has no other kind
            raise StartError(f"OpenVINO cannot load {options.model} on {options.device}: {last_line(error)}") from error
        self._tokenizer = self._pipeline.get_tokenizer()
        self._num_requests = 0

    @cached_property
    def num_tokens(self) -> int:
        """Of the vocabulary."""
        return 1 + int(max(self._tokenizer.get_vocab().values()))

    @property
    def has_work(self) -> bool:
        return bool(self._pipeline.has_non_finished_requests())

    def encode(self, text: str) -> list[TokenId]:
        return [TokenId(int(token_id)) for token_id in self._tokenizer.encode(text).input_ids.data[0]]

    def spell(self, rows: Sequence[Sequence[TokenId]]) -> list[str]:
        """The text of each row, without special tokens."""
        return list(self._tokenizer.decode([list(row) for row in rows]))

    def add(self, token_ids: Sequence[TokenId], sampling: Sampling) -> Generation:
        """A request that takes part from the next step on. Raises RuntimeError."""
        config = self._library.GenerationConfig()
        config.max_new_tokens = sampling.max_tokens
        config.ignore_eos = sampling.ignore_eos
        config.eos_token_id = self._tokenizer.get_eos_token_id()
        config.do_sample = sampling.temperature > 0
        if config.do_sample:
            config.temperature, config.top_p = sampling.temperature, sampling.top_p
            if sampling.seed is not None:
                config.rng_seed = sampling.seed
        prompt = self._tensors.Tensor(np.array([token_ids], dtype=np.int64))
        self._num_requests += 1
        return Generation(self._pipeline.add_request(self._num_requests, prompt, config))

    def step(self) -> None:
        """One forward pass of everything that takes part. Raises RuntimeError."""
        self._pipeline.step()


def last_line(error: Exception) -> str:
    """Of OpenVINO's long texts, what went wrong; the lines before name its source files."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__


def _library(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError as error:
        raise SettingsError(
            f"relevo bench openvino-server needs OpenVINO GenAI, which cannot be imported ({error}); "
            f"run: pip install openvino-genai"
        ) from error
