"""Long runs of blanks, handed on in pieces that grow with them. Models that have lost their way write nothing else, and
what holds blanks back looks at all of them again with every piece: so it costs no more than the run is long.

Knows no format. A short run is handed on as it comes.
"""

from __future__ import annotations

from relevo.gateway.dialects.marks import BLANKS

SHORT_CHARS = 64  # arbitrary: more than people indent


class BlankRuns:
    def __init__(self) -> None:
        self._held: list[str] = []
        self._num_held = self._num_handed_on = 0  # characters of the run that goes on

    @property
    def is_holding(self) -> bool:
        return bool(self._held)

    def take(self, text: str) -> str:
        """What is to be read now: all up to now, unless it is held."""
        if not text.isspace() or text.strip(BLANKS):
            if not text:
                return ""
            self._num_handed_on = 0
            return self.rest() + text if self._held else text
        self._num_held += len(text)
        if self._num_handed_on > SHORT_CHARS and self._num_held < self._num_handed_on:
            self._held.append(text)
            return ""
        self._num_handed_on += self._num_held
        return self.rest() + text

    def rest(self) -> str:
        """What is held."""
        text = "".join(self._held)
        self._held.clear()
        self._num_held = 0
        return text
