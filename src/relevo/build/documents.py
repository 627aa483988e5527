"""Files that people write for the server: JSON, or TOML where the name ends in .toml."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

from relevo.core.errors import SettingsError


def read_document(path: str, flag: str) -> Any:
    """With every number as it was written. Raises SettingsError, which begins with `flag`."""
    try:
        text = Path(path).read_text(encoding="utf-8")
        if path.endswith(".toml"):
            import tomllib  # most starts read no such file

            return tomllib.loads(text, parse_float=Decimal)
        return json.loads(text, parse_float=Decimal)
    except (OSError, ValueError) as error:  # both formats' errors are ValueErrors
        raise SettingsError(f"{flag} {path} cannot be read: {error}") from error
