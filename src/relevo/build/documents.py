"""Files that people write for the server: JSON, or TOML where the name ends in .toml."""

from __future__ import annotations

import json
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any

from relevo.core.errors import SettingsError


def read_text(path: str, flag: str) -> str:
    """Without the mark that some editors put first. Raises SettingsError, which begins with `flag`."""
    try:
        return Path(path).expanduser().read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise SettingsError(f"{flag} {path} is not UTF-8 (byte {error.start}); save it as UTF-8") from error
    except (OSError, ValueError, RuntimeError) as error:  # a name with a zero byte; no home folder
        raise SettingsError(f"{flag} {path} cannot be read: {error}") from error


def read_document(path: str, flag: str) -> Any:
    """With every number as it was written. Raises SettingsError, which begins with `flag`."""
    text = read_text(path, flag)
    try:
        if path.endswith(".toml"):
            import tomllib  # most starts read no such file

            return tomllib.loads(text, parse_float=_number)
        return json.loads(text, parse_float=_number)
    except RecursionError as error:
        raise SettingsError(f"{flag} {path} cannot be read: it is nested too deeply") from error
    except ValueError as error:  # both formats' errors are ValueErrors
        raise SettingsError(f"{flag} {path} cannot be read: {error}") from error


def _number(text: str) -> Decimal:
    """Raises ValueError for exponents that no decimal has."""
    try:
        return Decimal(text)
    except InvalidOperation:
        raise ValueError(f"{text[:40]!r} is larger or smaller than any number that can be kept") from None
