"""A report as one HTML page that needs nothing else: no script, no font, no picture, no address.

What comes from outside (names, addresses, errors) is escaped; the data are a link to themselves, in base64. Knows no
experiment: what is told of one is a `Report`.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from rich.console import RenderableType

from relevo.bench.html.figures import Figure
from relevo.bench.html.style import STYLE
from relevo.bench.html.svg import drawn, legend
from relevo.bench.html.tables import tables_html

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
DATA_LINK = 'href="data:application/json;base64,'


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What an experiment says. `sentence`: its result in one."""

    title: str
    sentence: str
    tables: RenderableType
    figures: Sequence[Figure]
    notes: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """How a report came to be."""

    command: str  # as a shell takes it, without secrets
    at: str
    facts: Sequence[tuple[str, str]]  # versions and machine
    settings: Sequence[tuple[str, str]]  # that are not the defaults


def page(report: Report, origin: Origin, data: bytes, *, partial: str = "") -> str:
    """The whole document. `data`: JSON. `partial`: why there is no more, if there is not."""
    warning = f'<p class="partial" role="status">Partial: {escape(partial)}</p>' if partial else ""
    notes = "".join(f"<li>{escape(note)}</li>" for note in report.notes)
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{_POLICY}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="generator" content="relevo">
<title>{escape(report.title)}</title>
<style>{STYLE}</style>
</head>
<body>
<header>
<h1>{escape(report.title)}</h1>
<p class="lead">{escape(report.sentence)}</p>
<p class="when">{escape(origin.at)}</p>
{warning}</header>
<main>
{_plots(report.figures)}
<h2>Numbers</h2>
<div class="tables">
{tables_html(report.tables)}
</div>
{f"<ul>{notes}</ul>" if notes else ""}
<h2>How it was made</h2>
<pre>{escape(origin.command)}</pre>
{_facts("Settings that are not the defaults", origin.settings)}
{_facts("Versions and machine", origin.facts)}
<h2>Data</h2>
<p>Everything that was measured, in this page: {_data_link(data)}</p>
</main>
</body>
</html>
"""


def _plots(figures: Sequence[Figure]) -> str:
    if not figures:
        return ""
    return f'<h2>Plots</h2>\n<div class="plots">\n{"".join(_figure(figure) for figure in figures)}</div>'


def _figure(figure: Figure) -> str:
    entries = "".join(f"<li>{sample}{escape(name)}</li>" for sample, name in legend(figure))
    told = f'<ul class="legend">{entries}</ul>' if entries else ""
    note = f'<p class="note">{escape(figure.note)}</p>' if figure.note else ""
    return f"<figure><figcaption>{escape(figure.title)}</figcaption>{told}{drawn(figure)}{note}</figure>\n"


def _facts(title: str, rows: Sequence[tuple[str, str]]) -> str:
    cells = "".join(f'<tr><th scope="row">{escape(name)}</th><td>{escape(value)}</td></tr>' for name, value in rows)
    body = cells or "<tr><td>none</td></tr>"
    return f'<table class="facts"><caption>{escape(title)}</caption><tbody>{body}</tbody></table>'


def _data_link(data: bytes) -> str:
    encoded = base64.b64encode(data).decode()
    return f'<a download="report.json" {DATA_LINK}{encoded}">report.json, {len(data) / 1e3:,.0f} kB</a>'
