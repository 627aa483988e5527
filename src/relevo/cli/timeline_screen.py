"""A request's timeline as text: bars of its phases on one time axis, facts, the cause, and what would help.

Pure. Knows nothing of HTTP; names and texts come from a server, so they are made harmless for a terminal.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from relevo.client.visible_text import one_line
from relevo.policy.slowness.amounts import count, seconds, size
from relevo.policy.slowness.words import Explanation, Phase, PhaseName, SlowCause

MIN_WIDTH, MAX_WIDTH = 60, 120
_NAME_WIDTH, _TOOK_WIDTH, _WORKER_WIDTH, _MARGIN = 11, 9, 18, 2
_DIM, _BOLD, _HOT = "2", "1", "1;33"

_OF_CAUSE = {
    SlowCause.OWN_PROMPT: {PhaseName.PREFILL},
    SlowCause.OWN_OUTPUT: {PhaseName.DECODE},
    SlowCause.LINE: {PhaseName.LINE},
    SlowCause.ROOM: {PhaseName.ROOM, PhaseName.QUEUE},
    SlowCause.NO_WORKER: {PhaseName.ROUTE},
    SlowCause.WORKER_QUEUE: {PhaseName.QUEUE},
    SlowCause.EVICTED_PREFIX: {PhaseName.PREFILL},
    SlowCause.MOVED_PREFIX: {PhaseName.PREFILL},
    SlowCause.SLOW_LINK: {PhaseName.HANDOFF},
    SlowCause.PREEMPTION: {PhaseName.PREEMPTED},
    SlowCause.WORKER_LOST: {PhaseName.RECOVER},
    SlowCause.SLOW_CLIENT: {PhaseName.CLIENT},
    SlowCause.GATEWAY: {PhaseName.PREPARE, PhaseName.MESSAGES, PhaseName.FIRST_WRITE, PhaseName.SETTLE},
    SlowCause.REFUSED: {PhaseName.LINE},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What the output can show."""

    width: int = 80
    has_colour: bool = False
    has_blocks: bool = True  # its encoding knows the characters of bars

    def __post_init__(self) -> None:
        object.__setattr__(self, "width", min(max(self.width, MIN_WIDTH), MAX_WIDTH))

    def painted(self, text: str, colour: str) -> str:
        return f"\x1b[{colour}m{text}\x1b[0m" if self.has_colour and text.strip() else text

    @property
    def bar_width(self) -> int:
        return self.width - _MARGIN - _NAME_WIDTH - _TOOK_WIDTH - _WORKER_WIDTH - 4


def timeline_lines(request: Mapping[str, Any], explanation: Explanation, look: Look) -> Iterator[str]:
    yield from wrapped(_heading(request), look, _DIM)
    yield ""
    yield from wrapped(explanation.sentence, look, _BOLD)
    if explanation.advice:
        yield from wrapped(f"What helps: {explanation.advice}", look)
    yield ""
    was_before = True
    for phase in explanation.phases:
        if was_before and not phase.is_before_first_token and explanation.ttft_s is not None:
            yield _rule(f"first token after {seconds(explanation.ttft_s)}", look)
        was_before = phase.is_before_first_token
        yield from _row(phase, explanation, look)
    yield _axis(explanation.e2e_s, look)
    if explanation.worst_gap_s is not None:
        yield look.painted(f"  longest gap between two tokens: {seconds(explanation.worst_gap_s)}", _DIM)


def summary_lines(number: int, request: Mapping[str, Any], explanation: Explanation, look: Look) -> Iterator[str]:
    """One of several: its times on a line, then why."""
    times = [seconds(explanation.e2e_s)]
    times += ["-" if value_s is None else seconds(value_s) for value_s in (explanation.ttft_s, explanation.worst_gap_s)]
    yield f"{number:>3} {''.join(f'{time:>9}' for time in times)}   {look.painted(_named(request), _BOLD)}"
    yield from wrapped(explanation.sentence, look, indent=6)


SUMMARY_HEADING = f"{'#':>3} {'total':>9}{'1st token':>11}{'gap':>7}   request"


def _named(request: Mapping[str, Any]) -> str:
    """Never cut: it is what the next command is given."""
    return one_line(str(request.get("id", "?")))


def _heading(request: Mapping[str, Any]) -> str:
    parts = [_named(request)]
    outcome = request.get("outcome") or request.get("state")
    parts += [one_line(str(told)) for told in (request.get("model"), outcome, request.get("code")) if told]
    prompts = request.get("prompts")
    if isinstance(prompts, list) and len(prompts) > 1:
        parts.append(f"the slowest of {count(len(prompts), 'prompt')}")
    prompt, cached = request.get("num_prompt_tokens"), request.get("num_cached_tokens")
    if isinstance(prompt, int):
        parts.append(count(prompt, "prompt token") + (f" ({cached:,} cached)" if isinstance(cached, int) else ""))
    output = request.get("num_output_tokens")
    if isinstance(output, int):
        parts.append(count(output, "output token"))
    return ", ".join(parts)


def _row(phase: Phase, explanation: Explanation, look: Look) -> Iterator[str]:
    name, took = phase.name.value.replace("_", " "), seconds(phase.took_s)
    is_hot = phase.name in _OF_CAUSE.get(explanation.cause, ())
    bar = look.painted(_bar(phase, explanation.e2e_s, look), _HOT if is_hot else "36")
    worker = one_line(phase.worker_id) or "gateway"
    label = f"{name:<{_NAME_WIDTH}}{took:>{_TOOK_WIDTH}}"
    yield f"{' ' * _MARGIN}{look.painted(label, _HOT) if is_hot else label}  {bar}  {worker}".rstrip()
    facts = ", ".join(_facts(phase.facts))
    if facts:
        yield from wrapped(facts, look, _DIM, indent=_MARGIN + _NAME_WIDTH + _TOOK_WIDTH + 2)


def _bar(phase: Phase, e2e_s: float, look: Look) -> str:
    """Its place on the axis; what is short is still seen."""
    width = look.bar_width
    begins = min(_place(phase.begins_s, e2e_s, width), width - 1) if e2e_s > 0 else 0
    ends = max(_place(phase.begins_s + phase.took_s, e2e_s, width), begins + 1) if e2e_s > 0 else 1
    return f"{' ' * begins}{('█' if look.has_blocks else '#') * (ends - begins)}{' ' * (width - ends)}"


def _place(at_s: float, e2e_s: float, width: int) -> int:
    """On the axis, wherever a server has it."""
    return round(min(max(at_s / e2e_s, 0.0), 1.0) * width)


def _rule(text: str, look: Look) -> str:
    dash = "─" if look.has_blocks else "-"
    return look.painted(f"{' ' * _MARGIN}{f'{dash * 2} {text} ':{dash}<{look.width - 2 * _MARGIN}}", _DIM)


def _axis(e2e_s: float, look: Look) -> str:
    left = " " * (_MARGIN + _NAME_WIDTH + _TOOK_WIDTH + 2)
    return look.painted(f"{left}{'0 s':<{look.bar_width - 12}}{seconds(e2e_s):>12}", _DIM)


def wrapped(text: str, look: Look, colour: str = "", indent: int = 0) -> Sequence[str]:
    margin = " " * indent
    lines = textwrap.wrap(
        one_line(text), look.width, initial_indent=margin, subsequent_indent=margin, break_on_hyphens=False
    )
    return [look.painted(line, colour) if colour else line for line in lines]


# ---- facts -----------------------------------------------------------------------------------------------------------


def _facts(facts: Mapping[str, Any]) -> Iterator[str]:
    """In words; what is not known here is told by its name."""
    left = dict(facts)
    for names, told in _TOLD:
        if all(name in left for name in names):
            values = [left.pop(name) for name in names]
            text = told(*values)
            if text:
                yield text
    yield from (f"{name} {value}" for name, value in left.items())


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) else 0.0


def _moved(link: str, sent: float, took_s: float) -> str:
    over = f"over {_LINKS.get(link, link)}"
    return f"{size(sent)} {over} in {seconds(took_s)}" if sent else over


_TOLD: tuple[tuple[tuple[str, ...], Any], ...] = (
    (("num_ahead",), lambda n: f"{_number(n):,.0f} ahead" if n else ""),
    (("num_running",), lambda n: f"{count(_number(n), 'stream')} there" if n else ""),
    (("num_waiting",), lambda n: f"{_number(n):,.0f} waiting" if n else ""),
    (("num_waiting_prefill_tokens",), lambda n: f"{count(_number(n), 'prompt token')} ahead" if n else ""),
    (
        ("num_free_blocks", "num_total_blocks"),
        lambda free, total: f"{_number(free):,.0f} of {count(_number(total), 'block')} free",
    ),
    (
        ("num_prompt_tokens", "num_cached_tokens"),
        lambda prompt, cached: f"{count(_number(prompt), 'token')}, {_number(cached):,.0f} of them cached",
    ),
    (("num_chunks",), lambda n: count(_number(n), "chunk") if n else ""),
    (
        ("num_lost_hit_tokens", "hits_lost"),
        lambda n, why: f"{_number(n):,.0f} had been cached ({str(why).replace('_', ' ')})",
    ),
    (("num_neighbour_prompt_tokens",), lambda n: f"{count(_number(n), 'prompt token')} of others" if n else ""),
    (
        ("link", "transferred_bytes", "transfer_s"),
        lambda link, sent, took: _moved(str(link), _number(sent), _number(took)),
    ),
    (
        ("num_steps", "num_generation_tokens"),
        lambda steps, tokens: (
            f"{count(_number(steps), 'step')}, {_number(tokens) / max(_number(steps), 1):,.1f} tokens each"
        ),
    ),
    (("failure",), lambda text: str(text)),
)
_LINKS = {"memory": "shared memory", "box": "the machine's own network", "network": "the network"}
