"""`relevo bench quality`: how far an engine's next-token distributions are from a float32 forward of the same weights.

Owns the windows, the sums and the table; forwards are brought as functions by what composes them. The text is cut into
windows of C tokens; logits after positions C // 2 ... C - 2 are scored, each against the token that follows, so that
every scored token has at least half a window of context. These are the windows and positions of llama.cpp's
`llama-perplexity --kl-divergence`, so figures on the same text can be compared.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from rich.console import Group, RenderableType
from rich.table import Table

from relevo.core.errors import SettingsError
from relevo.core.ids import TokenId
from relevo.telemetry.progress import Progress

Logits = npt.NDArray[np.float32]
Forward = Callable[[Sequence[TokenId], Sequence[int]], Logits]  # window, positions -> logits after them [n, V]

MOST_SHOWN = 20  # disagreements in the report; arbitrary


@dataclass(frozen=True, slots=True)
class Disagreement:
    """A position where the greedy choices differ; `margin` is the reference's best logit minus its second best."""

    window: int
    position: int
    margin: float


@dataclass(slots=True, kw_only=True)
class Score:
    """Sums over the scored positions of one engine. Natural logarithms."""

    name: str
    num_tokens: int = 0
    kl_sum: float = 0.0  # of KL(reference || engine)
    largest_kl: float = 0.0
    nll_sum: float = 0.0  # of the tokens that follow
    reference_nll_sum: float = 0.0
    num_disagreements: int = 0
    num_near_ties: int = 0  # of these, with a margin below the limit
    shown: list[Disagreement] = field(default_factory=list)  # widest margin first

    @property
    def mean_kl(self) -> float:
        return self.kl_sum / self.num_tokens

    @property
    def perplexity(self) -> float:
        return math.exp(self.nll_sum / self.num_tokens)

    @property
    def reference_perplexity(self) -> float:
        return math.exp(self.reference_nll_sum / self.num_tokens)

    @property
    def agreement(self) -> float:
        return 1.0 - self.num_disagreements / self.num_tokens

    def add(self, window: int, positions: Sequence[int], reference: Logits, logits: Logits, targets: Sequence[int],
            near_tie: float) -> None:  # fmt: skip
        """Logits after `positions` of a window [n, V], and the tokens that follow them."""
        expected, found = log_probabilities(reference), log_probabilities(logits)
        kl = np.sum(np.exp(expected) * (expected - found), axis=1)
        places = np.arange(len(positions))
        self.num_tokens += len(positions)
        self.kl_sum += float(kl.sum())
        self.largest_kl = max(self.largest_kl, float(kl.max()))
        self.nll_sum -= float(found[places, targets].sum())
        self.reference_nll_sum -= float(expected[places, targets].sum())
        margins = top_margins(reference)
        for place in np.flatnonzero(reference.argmax(axis=1) != logits.argmax(axis=1)):
            self.num_disagreements += 1
            self.num_near_ties += int(margins[place] < near_tie)
            self.shown.append(Disagreement(window, positions[int(place)], float(margins[place])))
        self.shown.sort(key=lambda one: -one.margin)
        del self.shown[MOST_SHOWN:]


@dataclass(slots=True, kw_only=True)
class QualityReport:
    reference: str
    context: int
    near_tie: float  # logits; a margin below it is called a near tie
    num_close_choices: int = 0  # scored positions whose reference margin is below it
    scores: list[Score] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        return {
            "reference": self.reference,
            "context": self.context,
            "near_tie": self.near_tie,
            "num_close_choices": self.num_close_choices,
            "scores": [
                asdict(score)
                | {
                    "mean_kl": score.mean_kl,
                    "perplexity": score.perplexity,
                    "reference_perplexity": score.reference_perplexity,
                    "agreement": score.agreement,
                }
                for score in self.scores
                if score.num_tokens
            ],
        }


def cut_windows(token_ids: Sequence[TokenId], context: int, first_token: TokenId | None) -> list[list[TokenId]]:
    """Whole windows of `context` tokens; `first_token` (begin of sequence) takes the place of each one's first.

    Raises SettingsError for a context that leaves nothing to score or a text without one whole window.
    """
    if context < 4:
        raise SettingsError(f"--context {context} leaves nothing to score; use at least 4 tokens, 512 is usual")
    if len(token_ids) < context:
        raise SettingsError(
            f"the text has {len(token_ids)} tokens, less than one window of {context}; use a longer one"
        )
    windows = [list(token_ids[i : i + context]) for i in range(0, len(token_ids) - context + 1, context)]
    return windows if first_token is None else [[first_token, *window[1:]] for window in windows]


def scored_positions(context: int) -> range:
    """Positions whose next token is scored."""
    return range(context // 2, context - 1)


def log_probabilities(logits: Logits) -> npt.NDArray[np.float64]:
    """[n, V], in double precision: differences of a millionth count here."""
    shifted = logits.astype(np.float64)
    shifted -= shifted.max(axis=1, keepdims=True)
    normaliser: npt.NDArray[np.float64] = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return normaliser


def top_margins(logits: Logits) -> npt.NDArray[np.float32]:
    """Best minus second best of each row."""
    best = np.partition(logits, -2, axis=1)[:, -2:]
    margins: npt.NDArray[np.float32] = best[:, 1] - best[:, 0]
    return margins


def compare_forwards(
    windows: Sequence[Sequence[TokenId]],
    reference: Forward,
    engines: Sequence[tuple[str, Forward]],
    report: QualityReport,
    progress: Progress,
) -> None:
    """Window by window, so that no more than one window's logits are held. `report` grows with each."""
    report.scores += [Score(name=name) for name, _ in engines]
    positions = scored_positions(report.context)
    progress.begin("comparing", len(windows), "windows")
    for number, window in enumerate(windows):
        expected = np.array(reference(window, positions))  # the backend may reuse its memory
        report.num_close_choices += int((top_margins(expected) < report.near_tie).sum())
        targets = [window[position + 1] for position in positions]
        for score, (_, forward) in zip(report.scores, engines, strict=True):
            found = forward(window, positions)
            score.add(number, positions, expected, found, targets, report.near_tie)
        progress.advance()


def quality_tables(report: QualityReport) -> RenderableType:
    table = Table(title=f"Against {report.reference}, windows of {report.context} tokens", title_justify="left")
    headings = ("tokens", "mean KL", "largest KL", "perplexity", "reference", "change", "same greedy", "differ", "ties")
    table.add_column("engine")
    for heading in headings:
        table.add_column(heading, justify="right")
    for score in report.scores:
        if not score.num_tokens:
            continue
        table.add_row(
            score.name,
            f"{score.num_tokens:,}",
            f"{score.mean_kl:.3e}",
            f"{score.largest_kl:.3e}",
            f"{score.perplexity:.4f}",
            f"{score.reference_perplexity:.4f}",
            f"{100 * (score.perplexity / score.reference_perplexity - 1):+.3f} %",
            f"{100 * score.agreement:.2f} %",
            str(score.num_disagreements),
            str(score.num_near_ties),
        )
    return Group(table, _disagreements_table(report))


def _disagreements_table(report: QualityReport) -> Table:
    table = Table(
        title=f"Greedy choices that differ, widest margin first; a near tie is below {report.near_tie:g} logits"
        f" ({report.num_close_choices} of the reference's choices are)",
        title_justify="left",
    )
    for heading in ("engine", "window", "position", "reference's margin", ""):
        table.add_column(heading)
    for score in report.scores:
        for one in score.shown:
            kind = "near tie" if one.margin < report.near_tie else ""
            table.add_row(score.name, str(one.window), str(one.position), f"{one.margin:.4f}", kind)
    return table
