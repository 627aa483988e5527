"""Small text files of a model folder: absent is an answer, broken is a sentence that names the file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from relevo.core.errors import ModelFileError


def read_text(path: Path) -> str | None:
    """None if the file is absent; without the mark that some editors put first. Raises ModelFileError."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        return None
    except UnicodeDecodeError as error:
        raise ModelFileError(f"{path} is not UTF-8 (byte {error.start}); save it as UTF-8") from error
    except OSError as error:
        raise ModelFileError(f"cannot read {path}: {error.strerror or error}") from error


def read_object(path: Path) -> dict[str, Any]:
    """A JSON object; empty if the file is absent. Raises ModelFileError."""
    text = read_text(path)
    return {} if text is None else parse_object(text, path)


def parse_object(text: str, path: Path) -> dict[str, Any]:
    """Raises ModelFileError."""
    try:
        value = json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
        raise ModelFileError(f"{path} is not valid JSON ({error}); download it again") from error
    if not isinstance(value, dict):
        raise ModelFileError(f"{path} holds no JSON object; download it again")
    return value
