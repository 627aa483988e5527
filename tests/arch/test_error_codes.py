"""A code of an error has one home. Red when one is typed where it is used: a misspelt one is answered as a worker's."""

from __future__ import annotations

import ast
from pathlib import Path

from relevo.core.errors import BY_CODE

SOURCE = Path(__file__).parents[2] / "src" / "relevo"
CODES = frozenset(BY_CODE) - {"forbidden"}  # also a word of other things
OTHER_WORDS = {
    "core/errors.py": "their home",
    "core/outcome.py": "a cause, written to the ledger, is called as a code is",
    "gateway/openai/errors.py": "one of OpenAI's types is called as a code is",
}
BLACK_BOXES = ("check", "bench", "client", "chat")  # they know what is on the wire only


def _files() -> list[Path]:
    paths = (path for path in SOURCE.rglob("*.py") if path.relative_to(SOURCE).parts[0] not in BLACK_BOXES)
    return sorted(path for path in paths if path.relative_to(SOURCE).as_posix() not in OTHER_WORDS)


def _typed_codes(source: str) -> list[object]:
    return [
        node.value for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Constant) and node.value in CODES
    ]


def test_codes_are_named_by_their_class() -> None:
    typed = {str(path.relative_to(SOURCE)): _typed_codes(path.read_text(encoding="utf-8")) for path in _files()}
    found = {path: codes for path, codes in typed.items() if codes}
    assert not found, f"name the class of core.errors that has the code: {found}"


def test_a_typed_code_is_found() -> None:
    assert _typed_codes('Rejected("handoff_failed", "…")') == ["handoff_failed"]
