"""Reads model shapes from Hugging Face configs: one file, or a folder of `ORGANISATION--MODEL_config.json`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from relevo.core.errors import ModelFileError
from relevo.policy.perf.model_config import model_shape
from relevo.policy.perf.model_shape import ModelShape
from relevo.policy.perf.native_memory import held_formats
from relevo.policy.perf.weight_formats import WeightFormats, weight_formats
from relevo.sim.tables.small_files import read_small


def read_model_shape(path: Path, formats: WeightFormats | None = None, *, is_native: bool = False) -> ModelShape:
    """Of `config.json`, or another name. A `hf_quant_config.json` beside it says the formats if the config does not.
    `is_native`: weights are as the native backend holds them.
    Raises ModelFileError or UnsupportedModel."""
    config = _read_json(path)
    if is_native:
        formats = held_formats(config)
    prefix = path.name.removesuffix("config.json")
    beside = path.with_name(f"{prefix}hf_quant_config.json")
    if formats is None and "quantization_config" not in config and beside.exists():
        formats = weight_formats(_read_json(beside).get("quantization"))
    return model_shape(prefix.strip("_") or path.parent.name, config, formats)


def config_path(folder: Path, model: str) -> Path:
    """Of `organisation/model` in a folder of configs."""
    return folder / f"{model.replace('/', '--')}_config.json"


def _read_json(path: Path) -> dict[str, Any]:
    try:
        parsed = json.loads(read_small(path))
    except (OSError, ValueError, RecursionError) as error:
        raise ModelFileError(f"cannot read {path}: {error}") from error
    if not isinstance(parsed, dict):
        raise ModelFileError(f"{path} is not a model's config: it is no JSON object")
    return parsed
