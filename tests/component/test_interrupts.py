import signal
import sys
import time
from pathlib import Path

import pytest

from relevo.cli.interrupts import interruptible

SWALLOWS = """
import signal
try:
    signal.raise_signal(signal.SIGINT)
    was_left_alone = True
except KeyboardInterrupt:
    was_left_alone = False
"""


def test_ctrl_c_during_an_import_is_heard_after_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Red when a module that catches what it should not makes a command deaf to Ctrl-C."""
    (tmp_path / "swallows_what_interrupts.py").write_text(SWALLOWS)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(KeyboardInterrupt), interruptible():
        import swallows_what_interrupts  # type: ignore[import-not-found]

        deadline_s = time.monotonic() + 30
        while time.monotonic() < deadline_s:
            pass
    assert swallows_what_interrupts.was_left_alone
    del sys.modules["swallows_what_interrupts"]


def test_ctrl_c_is_heard_at_once_elsewhere_and_the_handlers_are_put_back() -> None:
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGALRM)
    with pytest.raises(KeyboardInterrupt), interruptible():
        signal.raise_signal(signal.SIGINT)
        raise AssertionError("it went on")
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGALRM)) == before


def test_ctrl_c_is_heard_where_a_shell_had_it_ignored() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with pytest.raises(KeyboardInterrupt), interruptible():
            signal.raise_signal(signal.SIGINT)
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
