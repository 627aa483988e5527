"""The conversation at a terminal: reads what is typed, has it answered, writes the answer as it comes.

Owns what Ctrl-C and Ctrl-D mean. Does not know where lines come from (`read_line`) or go to (`write`).
"""

from __future__ import annotations

import asyncio
import textwrap
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass, field

from relevo.chat.answer import AnswerFacts, Piece
from relevo.chat.conversation import SETTABLE, Conversation
from relevo.chat.lines import HELP, Command, CommandName, LineJoiner, Unknown, understand
from relevo.chat.screen import Style, filled
from relevo.client.visible_text import one_line, visible
from relevo.core.errors import RelevoError

PROMPT, PROMPT_MORE = ">>> ", "... "
Answerer = Callable[[AnswerFacts], AsyncGenerator[Piece, None]]


@dataclass(slots=True)
class Talk:
    conversation: Conversation
    answer: Answerer  # to the conversation as it is
    read_line: Callable[[str], str]  # raises EOFError, KeyboardInterrupt
    write: Callable[[str], None]
    style: Style
    width: Callable[[], int]
    last: AnswerFacts = field(default_factory=AnswerFacts)
    _lines: LineJoiner = field(default_factory=LineJoiner)
    _was_interrupted: bool = False  # by the last thing that happened

    def run(self, runner: asyncio.Runner) -> None:
        """Until the person leaves."""
        while True:
            try:
                text = self._read()
            except EOFError:
                self.write("\n")
                return
            except KeyboardInterrupt:
                if self._interrupted("Ctrl-C again leaves, and so does Ctrl-D."):
                    return
                continue
            self._was_interrupted = False
            asked = understand(text)
            if isinstance(asked, Command):
                if asked.name is CommandName.EXIT:
                    return
                self._carry_out(asked)
            elif isinstance(asked, Unknown):
                self._note(f"{asked.word} is no command; /help lists them. Write // to send a line that begins with /.")
            elif asked is not None:
                self._ask(asked.text, runner)

    def _read(self) -> str:
        while True:
            text = self._lines.feed(self.read_line(PROMPT_MORE if self._lines.is_open else PROMPT))
            if text is not None:
                return text

    def _interrupted(self, note: str) -> bool:
        """Whether it is the second time in a row. Half a message is dropped the first time."""
        self._lines.drop()
        self.write("\n")
        if self._was_interrupted:
            return True
        self._was_interrupted = True
        self._note(note)
        return False

    def _ask(self, text: str, runner: asyncio.Runner) -> None:
        self.conversation.ask(text)
        self.last = AnswerFacts()
        written: list[str] = []
        try:
            runner.run(self._show(written))
        except KeyboardInterrupt:
            self._interrupted("Stopped. Ctrl-C again leaves.")
        except RelevoError as error:
            self.write("\n" if written else "")
            self._note(error.message)
        finally:
            self.conversation.take("".join(written))
        self._show_facts()

    async def _show(self, written: list[str]) -> None:
        """What is kept as the answer is what was shown of it, reasoning left out."""
        ends_line = True
        async with aclosing(self.answer(self.last)) as pieces:
            async for piece in pieces:
                shown = visible(piece.text)
                self.write(self.style.dim(shown) if piece.is_reasoning else shown)
                ends_line = shown.endswith("\n")
                if not piece.is_reasoning:
                    written.append(piece.text)
        self.write("" if ends_line else "\n")

    def _show_facts(self) -> None:
        told = self.last.told() if self.last.first_at_ns else []
        if self.last.finish_reason == "length":
            told.append("ended by the token limit")
        if told:
            self._note(filled([one_line(part) for part in told], self.width()))

    def _carry_out(self, command: Command) -> None:
        match command.name:
            case CommandName.HELP:
                self._note(HELP)
            case CommandName.RESET:
                self.conversation.reset()
                self._note("The conversation is forgotten.")
            case CommandName.SYSTEM:
                self.conversation.system = command.rest
                self._note("The system prompt is set." if command.rest else "There is no system prompt now.")
            case CommandName.SET:
                self._set(command.rest)
            case CommandName.WHY:
                route = self.last.route.replace(" | ", "\n")
                self._note(route or "The server has not told.")

    def _set(self, rest: str) -> None:
        name, _, value = rest.replace("=", " ", 1).partition(" ")
        if name:
            try:
                self.conversation.set(name, value.strip())
            except RelevoError as error:
                self._note(error.message)
                return
        set_now = [f"{name} {value}" for name, value in self.conversation.settings.items()]
        self._note(filled(set_now or ["Nothing is set: the server decides."], self.width()))
        if not name:
            self._note(filled(["These can be set:", *SETTABLE], self.width(), between=" "))

    def _note(self, text: str) -> None:
        lines = [part for line in text.split("\n") for part in textwrap.wrap(visible(line), self.width()) or [""]]
        self.write("".join(self.style.dim(line) + "\n" for line in lines))
