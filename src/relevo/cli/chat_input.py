"""Where `relevo chat` gets its text from: lines at a terminal, with the history of earlier times, or a whole pipe."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from typing import BinaryIO

from relevo.chat.screen import Style
from relevo.core.errors import SettingsError

try:
    import readline
except ImportError:  # a Python without it: lines can be typed, not edited
    readline = None  # type: ignore[assignment]

MAX_PIPED_BYTES = 64 * 2**20  # arbitrary: more than servers take
_MAX_HISTORY_LINES = 1000  # arbitrary


def piped_text(stream: BinaryIO) -> str:
    """All of it. Raises SettingsError."""
    raw = stream.read(MAX_PIPED_BYTES + 1)
    if len(raw) > MAX_PIPED_BYTES:
        raise SettingsError(f"standard input has more than {MAX_PIPED_BYTES // 2**20} MiB; ask with less text")
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise SettingsError(
            f"standard input is not UTF-8 (byte {error.start}); convert it first, for example with iconv -t utf-8"
        ) from None
    if not text.strip():
        raise SettingsError("standard input is empty; pipe a question into it, or run relevo chat at a terminal")
    return text.rstrip("\n")


class LineReader:
    """Reads lines from the terminal."""

    def __init__(self, has_history: bool) -> None:
        self._style = Style(has_colour=readline is not None and sys.stdout.isatty() and not os.environ.get("NO_COLOR"))
        self._history = _history_file() if has_history and readline is not None else None
        if self._history is not None:
            with contextlib.suppress(OSError):  # there is none yet, or it cannot be read: then lines begin anew
                readline.read_history_file(self._history)
            readline.set_history_length(_MAX_HISTORY_LINES)

    def read(self, prompt: str) -> str:
        """Raises EOFError, KeyboardInterrupt."""
        if sys.stdout.isatty():
            line = input(self._style.bold_prompt(prompt))
        else:  # the answers go into a file; the prompt must not
            sys.stderr.write(prompt)
            sys.stderr.flush()
            line = input()
        self._keep()
        return line.encode(errors="surrogateescape").decode(errors="replace")  # bytes that are no text of this locale

    def _keep(self) -> None:
        if self._history is None:
            return
        try:
            before = os.umask(0o077)  # what is typed is for its writer alone
            try:
                self._history.parent.mkdir(parents=True, exist_ok=True)
                readline.write_history_file(self._history)
            finally:
                os.umask(before)
        except OSError as error:
            sys.stderr.write(f"what is typed is not kept: {self._history}: {error.strerror} (--no-history is silent)\n")
            self._history = None


def _history_file() -> Path | None:
    state = os.environ.get("XDG_STATE_HOME") or ""
    try:
        folder = Path(state) if state.startswith("/") else Path.home() / ".local" / "state"
    except RuntimeError:  # no home
        return None
    return folder / "relevo" / "chat_history"
