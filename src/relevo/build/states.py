"""What is refused for a model whose layers keep a state of each sequence."""

from __future__ import annotations

from relevo.core.errors import SettingsError
from relevo.core.model import ModelConfig
from relevo.settings import Settings


def check_states(settings: Settings, model: ModelConfig) -> None:
    """Raises SettingsError for what such a model cannot be served with yet."""
    if model.delta is None:
        return
    if settings.kv_cache_dtype == "int8":
        raise SettingsError(
            f"--kv-cache-dtype int8 is not implemented for a {model.architecture} model, whose states lie beside keys "
            "and values of floats; leave it out or choose float16, bfloat16 or float32"
        )
