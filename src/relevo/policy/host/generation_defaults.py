"""What a model samples with where a client says nothing: its makers' word, an operator's overrides, else neutral.

Pure: values in, checked values out. It does not know files, nor what a client asked for (which wins over all of this).
Source: vLLM's `--generation-config` and `--override-generation-config`; names are those of generation_config.json.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from relevo.core.errors import ModelFileError, SettingsError, StartError

_MAX_INT = 2**31 - 1
_RULES: Mapping[str, tuple[str, float, float]] = {  # in words, least, most; the bounds that a request has too
    "temperature": ("a number from 0 to 100", 0.0, 100.0),
    "top_k": ("a whole number from -1, where -1 and 0 are off", -1, _MAX_INT),
    "top_p": ("a number above 0, at most 1", math.nextafter(0.0, 1.0), 1.0),
    "min_p": ("a number from 0 to 1", 0.0, 1.0),
    "repetition_penalty": ("a number above 0, at most 100", math.nextafter(0.0, 1.0), 100.0),
    "max_new_tokens": ("a whole number of at least 1", 1, _MAX_INT),
}
_WHOLE = frozenset(("top_k", "max_new_tokens"))
# What would change the draws and is not implemented, with the value at which it does not.
_NOT_IMPLEMENTED: Mapping[str, object] = {
    "typical_p": 1.0,
    "epsilon_cutoff": 0.0,
    "eta_cutoff": 0.0,
    "no_repeat_ngram_size": 0,
    "num_beams": 1,
    "suppress_tokens": None,
    "bad_words_ids": None,
    "xtc_probability": 0.0,
    "mirostat": 0,
}


def generation_defaults(stated: Mapping[str, Any], origin: str, overrides: Mapping[str, Any]) -> dict[str, float]:
    """`stated` is what `origin` says, of which other fields are left alone. Raises ModelFileError, SettingsError."""
    wanted = {name: stated[name] for name in _RULES if stated.get(name) is not None and name not in overrides}
    fix = "mend it, or start with --generation-config vllm or --override-generation-config"
    return _checked(wanted, origin, fix, ModelFileError) | checked_overrides(overrides)


def checked_overrides(overrides: Mapping[str, Any]) -> dict[str, float]:
    """Raises SettingsError for a name that is none, or a value that no request may have."""
    for name in overrides:
        if name not in _RULES:
            raise SettingsError(f"--override-generation-config has {name!r}; one of {', '.join(_RULES)} can be set")
    return _checked(overrides, "--override-generation-config", "change it or leave it out", SettingsError)


def defaults_note(defaults: Mapping[str, float], stated: Mapping[str, Any], origin: str) -> str:
    """One line for the start."""
    shown = ", ".join(f"{name} {value:g}" for name, value in defaults.items()) or "neutral (temperature 1, no cut)"
    note = f"sampling defaults: {shown}{f', from {origin}' if defaults else ''}; what a request says wins"
    left_out = [name for name, off in _NOT_IMPLEMENTED.items() if stated.get(name) not in (None, off)]
    return f"{note}; {', '.join(left_out)} in {origin} is not implemented" if left_out else note


def _checked(values: Mapping[str, Any], origin: str, fix: str, kind: type[StartError]) -> dict[str, float]:
    checked = {}
    for name, value in values.items():
        rule, least, most = _RULES[name]
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not least <= value <= most or (name in _WHOLE and value != int(value)):
            raise kind(f"{origin}: {name} is {value!r} and must be {rule}; {fix}")
        checked[name] = int(value) if name in _WHOLE else float(value)
    return checked
