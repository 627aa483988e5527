"""`relevo top` on a screen: what is on it, what every key does, what it makes of names, sizes and a server that goes.

The screen is read as text, line by line, from what the application itself draws.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest
import told_states as told
from rich.text import Text
from textual.pilot import Pilot

from relevo.core.errors import RelevoError
from relevo.gateway.console.state import Requests, State
from relevo.top.app import TopApp
from relevo.top.feed import Lost

SIZES = [(80, 24), (200, 50)]


@dataclass
class RecordedActions:
    asked: list[tuple[str, str]] = field(default_factory=list)
    error: RelevoError | None = None

    async def why(self, request_id: str, width: int) -> Text:
        await self._ask("why", request_id)
        return Text("It waited 4.1 s in line.\n" + "\n".join(f"phase {number}" for number in range(60)))

    async def drain(self, worker_id: str) -> None:
        await self._ask("drain", worker_id)

    async def _ask(self, what: str, of: str) -> None:
        self.asked.append((what, of))
        if self.error is not None:
            raise self.error


class Rig:
    """The application, what it is told, and what it shows."""

    def __init__(self, state: State) -> None:
        self.coming: asyncio.Queue[State | Lost] = asyncio.Queue()
        self.actions = RecordedActions()
        self.app = TopApp(told.as_read(state), self._updates, self.actions, "http://box:8000")
        self.pilot: Pilot[None]

    async def _updates(self) -> AsyncIterator[object]:
        while True:
            update = await self.coming.get()
            yield update if isinstance(update, Lost) else told.as_read(update)

    async def tell(self, update: State | Lost) -> None:
        self.coming.put_nowait(update)
        await self.pilot.pause()

    async def press(self, *keys: str) -> str:
        await self.pilot.press(*keys)
        await self.pilot.pause()
        return self.text

    @property
    def lines(self) -> list[str]:
        strips = self.app.screen._compositor.render_strips()
        return ["".join(segment.text for segment in strip) for strip in strips]

    @property
    def text(self) -> str:
        return "\n".join(self.lines)

    def line(self, words: str) -> str:
        """The only line with these words."""
        (found,) = [line for line in self.lines if words in line]
        return found


@asynccontextmanager
async def screen(state: State | None = None, size: tuple[int, int] = (80, 24)) -> AsyncIterator[Rig]:
    rig = Rig(state or told.state())
    async with rig.app.run_test(size=size, notifications=True) as pilot:
        rig.pilot = pilot
        for _ in range(100):  # the footer is drawn when its keys are known
            await pilot.pause()
            if "Quit" in rig.lines[-1]:
                break
        yield rig


@pytest.mark.parametrize("size", SIZES)
async def test_everything_that_matters_is_on_a_screen_of_that_size(size: tuple[int, int]) -> None:
    """Red when a line is wider than the screen, or when the slow worker has to be looked for."""
    async with screen(size=size) as rig:
        assert all(len(line) == size[0] for line in rig.lines)
        assert len(rig.lines) == size[1]
        for words in ("qwen2.5-coder-0.5b 2p2d", "TTFT ms p50 182 p90 364 p99 728", "776 tok/s", "workers 4/4"):
            assert words in rig.text
        assert "in flight 31   hits 58%   line 1 interactive (0s), 3 batch (12s)" in rig.text
        assert rig.line("times as slow").startswith("! decode-1 is 2.4 times as slow as decode-0")
        fast, slow = rig.line("● decode-0  "), rig.line("! decode-1  ")
        for words in ("14", "62%", "61%", "388", "97%", "71% mem", "34", "136"):
            assert words in fast.split("qwen")[0]
        for words in ("28% mem", "81", "324"):
            assert words in slow
        assert "62% ops" in rig.line("prefill-0  ")
        for key in ("Drain", "Why", "Sort", "Filter", "Pause", "Help", "Quit"):
            assert key in rig.lines[-1]
        assert "long neighbour" in rig.text
        assert "4.10 s in the gat" in rig.text, "the time that has a column of its own is not told twice"


async def test_tables_that_have_no_room_are_one_key_away_and_all_are_there_on_a_tall_screen() -> None:
    async with screen() as rig:
        assert "WHY" in rig.text
        assert "HOME" not in rig.text
        assert "HOME" in await rig.press("3")
        assert "holds 1,840 of" in await rig.press("4")
        assert "REASON" not in await rig.press("2")
    async with screen(size=(200, 50)) as rig:
        for head in ("WHY", "HOME", "REASON"):
            assert head in rig.text


async def test_tab_goes_round_the_tables() -> None:
    async with screen() as rig:
        names = []
        for _ in range(5):
            names.append(rig.app.focused.id if rig.app.focused else None)
            await rig.press("tab")
        assert names == ["workers", "requests", "sessions", "decisions", "workers"]
        await rig.press("shift+tab")
        assert rig.app.focused is not None
        assert rig.app.focused.id == "workers"


async def test_a_drain_is_asked_for_only_after_a_yes() -> None:
    async with screen() as rig:
        assert "Drain decode-0?" in await rig.press("down", "down", "d")
        assert "14 continuations decode there" in rig.text
        for no in ("n", "escape", "enter", "q"):
            await rig.press(no, "d")
        assert rig.actions.asked == []
        assert "decode-0 drains" in await rig.press("y")
        assert rig.actions.asked == [("drain", "decode-0")]


async def test_a_drain_that_is_refused_says_why() -> None:
    async with screen(size=(100, 30)) as rig:
        rig.actions.error = RelevoError("Draining needs an admin key [bold]")
        shown = await rig.press("d", "y")
        assert "prefill-0 was not drained" in shown
        assert "admin key [bold]" in shown


async def test_a_drain_needs_a_worker_and_why_a_request() -> None:
    async with screen() as rig:
        assert "Put the cursor on a request" in await rig.press("w")
        assert "Put the cursor on a worker" in await rig.press("2", "d")
        assert rig.actions.asked == []


@pytest.mark.parametrize("key", ["w", "enter"])
async def test_why_tells_of_the_request_under_the_cursor(key: str) -> None:
    async with screen() as rig:
        slowest = told.summary(18).request_id
        assert f"Why {slowest}" in await rig.press("2", "down", key)
        assert rig.actions.asked == [("why", slowest)]
        assert "It waited 4.1 s in line." in rig.text
        assert "phase 50" not in rig.text
        assert "phase 59" in await rig.press("j", *["pagedown"] * 4)
        assert f"Why {slowest}" not in await rig.press("escape")


async def test_why_of_a_decision_is_that_of_its_request_and_an_error_is_told() -> None:
    async with screen() as rig:
        rig.actions.error = RelevoError("the server knows no such request any more")
        assert "knows no such request any more" in await rig.press("4", "w")
        assert rig.actions.asked == [("why", "chatcmpl-00000004")]


async def test_s_sorts_by_one_column_after_the_other() -> None:
    async with screen() as rig:
        assert order_of_workers(rig) == ["prefill-0", "prefill-1", "decode-0", "decode-1"]
        await rig.press("s")
        assert order_of_workers(rig) == ["decode-0", "decode-1", "prefill-0", "prefill-1"]
        await rig.press(*["s"] * 8)  # ROLE RUN WAIT KV HIT TOK/S BUSY LIMIT
        assert order_of_workers(rig) == ["decode-0", "prefill-0", "decode-1", "prefill-1"]
        await rig.press("s")
        assert order_of_workers(rig)[:2] == ["decode-1", "decode-0"]


def order_of_workers(rig: Rig) -> list[str]:
    return [line.split()[1] for line in rig.lines[5:9]]


async def test_a_filter_shows_the_rows_that_have_its_text_until_it_is_ended() -> None:
    async with screen() as rig:
        shown = await rig.press("slash", *"code-1")
        assert "! decode-1" in shown
        assert "prefill-0" not in shown
        shown = await rig.press("enter")
        assert "filter: code-1" in shown
        assert "prefill-0" not in shown
        await rig.press("d")
        assert "Drain decode-1?" in rig.text
        await rig.press("n")
        assert "prefill-0" in await rig.press("escape")
        assert "no row has 'zz'" in await rig.press("slash", "z", "z")


async def test_keys_that_are_typed_into_the_filter_do_nothing_else() -> None:
    async with screen() as rig:
        await rig.press("slash", *"dqp?s")
        assert rig.app.is_running
        assert rig.actions.asked == []
        assert "PAUSED" not in rig.text


async def test_a_pause_keeps_what_is_shown_until_it_is_over() -> None:
    async with screen() as rig:
        later = told.state(workers=(told.worker("decode-7"),))
        assert "PAUSED" in await rig.press("p")
        await rig.tell(later)
        assert "decode-7" not in rig.text
        assert "PAUSED" not in await rig.press("p")
        await rig.tell(later)
        assert "decode-7" in rig.text


async def test_help_tells_of_every_key_and_goes_away() -> None:
    async with screen() as rig:
        shown = await rig.press("question_mark")
        for words in ("drain the worker", "why the request", "sort by", "show rows", "pause what"):
            assert words in shown
        assert "drain the worker" not in await rig.press("escape")


async def test_q_and_control_c_leave() -> None:
    for key in ("q", "ctrl+c"):
        async with screen() as rig:
            await rig.press(key)
            assert not rig.app.is_running
            assert rig.app.return_code == 0


async def test_the_cursor_stays_with_its_row_when_rows_move() -> None:
    async with screen() as rig:
        await rig.press("down", "down")
        await rig.tell(told.state(workers=(told.worker("decode-0"), told.worker("decode-9"))))
        assert "Drain decode-0?" in await rig.press("d")


async def test_what_comes_above_the_first_row_is_seen_while_the_cursor_is_there() -> None:
    """Red when the newest decisions are scrolled away because the cursor follows an old one."""
    async with screen() as rig:
        await rig.press("4")
        for first in (5, 50):
            await rig.tell(told.state(decisions=told.decisions(first) + told.decisions(first + 20)))
            assert f"…atcmpl-{first + 23:08x}" in rig.lines[11]
        await rig.press("down", "down")
        await rig.tell(told.state(decisions=(*told.decisions(50), *told.decisions(70), *told.decisions(90))))
        assert f"Why chatcmpl-{72:08x}" in await rig.press("w")


async def test_a_server_that_is_gone_is_said_its_last_values_stay_and_it_comes_back() -> None:
    async with screen() as rig:
        await rig.tell(Lost("no server answers"))
        assert "✕ no answer for 0s: no server answers; last values, trying again" in rig.text
        assert "decode-0" in rig.text
        cells = [segment for strip in rig.app.screen._compositor.render_strips()[6:9] for segment in strip]
        assert all(segment.style and segment.style.dim for segment in cells if segment.text.strip())
        await rig.tell(told.state())
        assert "no answer" not in rig.text
        assert "! decode-1 is" in rig.text


async def test_a_worker_that_is_down_and_a_model_that_is_not_ready_come_first() -> None:
    down = told.worker("decode-0", is_ready=False, why_not_ready="its step loop has not answered for 8 s")
    async with screen(told.state(workers=(down, told.worker("decode-1")))) as rig:
        assert rig.line("! decode-0").startswith("! decode-0: its step loop has not answered for 8 s")
        assert "○ decode-0" in rig.text
        assert "workers 1/2" in rig.text


async def test_names_of_markup_control_and_right_to_left_characters_stay_text() -> None:
    """Red when a client's name colours a row, moves the cursor, or turns the rest of the line round."""
    name = "[red]x[/]\x1b[31m\x07\u202egpj\n"
    shown_as = "[red]x[/]␛[31m␇�gpj"
    state = told.state(
        workers=(told.worker(name), told.worker("ok", is_ready=False, why_not_ready=name)),
        requests=Requests(num_in_flight=1, in_flight=(told.summary(1, request_id=name, sentence=name),), slowest=()),
        sessions=(told.session(1, tenant=name, home_worker_id=name),),
    )
    async with screen(state, size=(140, 50)) as rig:
        assert shown_as.split("[31m")[0] in rig.text
        assert not {"\x1b", "\x07", "\u202e"} & set(rig.text)
        assert all(len(line) == 140 for line in rig.lines)
        await rig.press("s", "d")
        assert "Drain [red]x[/]␛[31m␇�gpj?" in rig.text
        await rig.press("y")
        assert rig.actions.asked == [("drain", name)]
        assert "Why [red]x[/]" in await rig.press("2", "w")


async def test_letters_that_take_two_columns_move_none() -> None:
    async with screen(told.state(workers=(told.worker("解碼節點一二三四五"), told.worker("decode-1")))) as rig:
        wide, plain = rig.line("解碼"), rig.line("decode-1")
        num_wide = sum(ord(letter) > 0x2E80 for letter in wide)
        assert wide.index("dec ") + num_wide == plain.index("dec ", 12)


@pytest.mark.timeout(60)
async def test_hundreds_of_workers_and_thousands_of_sessions_are_drawn_as_lines_on_the_screen_only() -> None:
    """Red, by its timeout of seconds, when every row is laid out and not only those on the screen."""
    workers = tuple(told.worker(f"decode-{number}") for number in range(200))
    sessions = tuple(told.session(number) for number in range(5000))
    many = told.state(workers=workers, sessions=sessions)
    async with screen(many) as rig:
        await rig.press("3")
        await rig.tell(many)
        await rig.press("end", "s", "home", "pagedown")
        assert "sessions 5000" in rig.text
        assert len(rig.lines) == 24
        await rig.press("1", "end")
        assert "Drain decode-199?" in await rig.press("d")


async def test_an_idle_server_says_that_there_is_nothing() -> None:
    empty = told.state(
        workers=(),
        sessions=(),
        decisions=(),
        lines=(),
        latency=(),
        requests=Requests(num_in_flight=0, in_flight=(), slowest=()),
    )
    async with screen(empty, size=(80, 40)) as rig:
        for words in ("no workers", "no requests in the last", "no sessions", "nothing was decided"):
            assert words in rig.text
        assert "TTFT ms p50 - p90 - p99 -" in rig.text


async def test_a_screen_that_is_made_smaller_is_laid_out_anew() -> None:
    async with screen(size=(200, 50)) as rig:
        await rig.pilot.resize_terminal(80, 24)
        await rig.pilot.pause()
        assert all(len(line) == 80 for line in rig.lines)
        assert "HOME" not in rig.text
