"""What a person types: commands, messages of several lines, and the lines that make them up. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

BLOCK = '"""'


class CommandName(StrEnum):
    HELP = "help"
    RESET = "reset"
    SYSTEM = "system"
    SET = "set"
    WHY = "why"
    EXIT = "exit"


HELP = """\
/help            this
/reset           forget the conversation; system prompt and settings stay
/system TEXT     set the system prompt; without TEXT: none
/set NAME VALUE  such as /set temperature 0.7; without VALUE: the server's
/set             what is set, and what can be
/why             why the last answer came from the workers it came from
/exit            leave; so does Ctrl-D, and Ctrl-C twice
Ctrl-C           stop the answer that is being written
A line that ends with \\ goes on in the next one, and so does what is between two
lines of \"\"\". Write // for a message that begins with /."""

_ALIASES = {"quit": "exit", "bye": "exit", "q": "exit", "?": "help", "clear": "reset"}


@dataclass(frozen=True, slots=True)
class Command:
    name: CommandName
    rest: str


@dataclass(frozen=True, slots=True)
class Message:
    text: str


@dataclass(frozen=True, slots=True)
class Unknown:
    word: str


def understand(text: str) -> Command | Message | Unknown | None:
    """None: nothing was written. Only one line can be a command."""
    stripped = text.strip()
    if not stripped:
        return None
    if not stripped.startswith("/") or "\n" in stripped:
        return Message(text)
    if stripped.startswith("//"):
        return Message(stripped[1:])
    word, _, rest = stripped[1:].partition(" ")
    name = _ALIASES.get(word.lower(), word.lower())
    if name not in list(CommandName):
        return Unknown(f"/{word}")
    return Command(CommandName(name), rest.strip())


@dataclass(slots=True)
class LineJoiner:
    """Joins lines to a message: after a trailing backslash, and between two lines that are three quotes."""

    _lines: list[str] = field(default_factory=list)
    _in_block: bool = False

    @property
    def is_open(self) -> bool:
        return self._in_block or bool(self._lines)

    def feed(self, line: str) -> str | None:
        """The whole message when `line` ends it."""
        if self._in_block:
            head, found, _ = line.partition(BLOCK)
            self._lines.append(head if found else line)
            return self._end() if found else None
        if not self._lines and line.lstrip().startswith(BLOCK):
            self._in_block = True
            return self.feed(rest) if (rest := line.lstrip().removeprefix(BLOCK)) else None
        if line.endswith("\\"):
            self._lines.append(line[:-1])
            return None
        self._lines.append(line)
        return self._end()

    def drop(self) -> None:
        self._lines.clear()
        self._in_block = False

    def _end(self) -> str:
        text = "\n".join(self._lines).strip("\n")
        self.drop()
        return text
