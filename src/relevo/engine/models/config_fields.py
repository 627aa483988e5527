"""Numbers of a model's description: what is written is taken or refused, only what is absent has a default.

Zero and negative numbers are written, not absent. `null` is absent, as transformers writes it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, TypeVar

from relevo.core.errors import ModelFileError
from relevo.core.model import ModelConfig

Number = TypeVar("Number", int, float)


class ConfigFields:
    """The fields of one object; `origin` begins every error."""

    def __init__(self, raw: Mapping[str, Any], origin: str) -> None:
        self.raw, self.origin = raw, origin

    def integer(self, name: str, default: int | None = None, *, least: int = 1) -> int:
        """Raises ModelFileError if it is absent without a default, no whole number, or below `least`."""
        value = self.optional_integer(name, least=least)
        return self._missing(name, default) if value is None else value

    def optional_integer(self, name: str, *, least: int = 1) -> int | None:
        value = self.raw.get(name)
        if value is None:
            return None
        if not _is_number(value) or value != int(value) or value < least:
            raise self._wrong(name, f"a whole number of at least {least}")
        return int(value)

    def number(self, name: str, default: float | None = None, *, zero: bool = False) -> float:
        """Above zero, or zero too. Raises ModelFileError."""
        value = self.optional_number(name, zero=zero)
        return self._missing(name, default) if value is None else value

    def optional_number(self, name: str, *, zero: bool = False) -> float | None:
        value = self.raw.get(name)
        if value is None:
            return None
        if not _is_number(value) or value < 0 or (value == 0 and not zero):
            raise self._wrong(name, "a number of at least 0" if zero else "a number above 0")
        return float(value)

    def numbers(self, name: str) -> list[float] | None:
        """A list of numbers above zero."""
        values = self.raw.get(name)
        if values is None:
            return None
        if not isinstance(values, list) or not all(_is_number(value) and value > 0 for value in values):
            raise self._wrong(name, "a list of numbers above 0")
        return [float(value) for value in values]

    def flag(self, name: str) -> bool:
        """False if it is absent. Raises ModelFileError for what is neither true nor false, such as a text."""
        value = self.raw.get(name)
        if value is not None and not isinstance(value, bool):
            raise self._wrong(name, "true or false")
        return bool(value)

    def _wrong(self, name: str, rule: str) -> ModelFileError:
        shown = repr(self.raw[name])
        shown = shown if len(shown) < 60 else f"{shown[:60]}..."
        return ModelFileError(f"{self.origin}: {name} is {shown} and must be {rule}; mend it or download it again")

    def _missing(self, name: str, default: Number | None) -> Number:
        if default is None:
            raise ModelFileError(f"{self.origin}: {name} is missing; download the file again")
        return default


def with_defaults(fields: ConfigFields, defaults: Mapping[str, Any]) -> ConfigFields:
    """What is absent is the family's."""
    stated = {name: value for name, value in fields.raw.items() if value is not None}
    return ConfigFields({**defaults, **stated}, fields.origin)


def check_shape(config: ModelConfig, origin: str) -> ModelConfig:
    """Counts that must fit each other, whatever format they were read from. Raises ModelFileError."""
    if config.num_heads % config.num_kv_heads:
        raise ModelFileError(
            f"{origin}: {config.num_heads} attention heads cannot share {config.num_kv_heads} key/value heads evenly; "
            "mend it or download it again"
        )
    if config.head_size % 2:
        raise ModelFileError(f"{origin}: a head size of {config.head_size} cannot be rotated in pairs; it must be even")
    return config


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
