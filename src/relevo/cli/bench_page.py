"""`relevo bench page`: results in a folder become a page of figures, and the lines of it that another page quotes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from relevo.bench.html.file import write_whole
from relevo.bench.page.markdown import performance_page
from relevo.bench.page.quote import quoted
from relevo.bench.page.results import read_results
from relevo.cli.bench_terminal import friendly, note
from relevo.core.errors import SettingsError


def page(
    folder: Annotated[Path, typer.Argument(help="Of JSON files that engine, peers, gateway and start wrote.")],
    out: Annotated[Path, typer.Option(help="The page of Markdown that is written.")],
    quote: Annotated[Path | None, typer.Option(help="A page whose figures between two marks are replaced.")] = None,
) -> None:
    """Make a page of figures from results: a section per kind of CPU. Measures nothing."""
    for path in friendly(lambda: _write(folder, out, quote)):
        note(f"wrote {path}")


def _write(folder: Path, out: Path, quote: Path | None) -> list[Path]:
    """Nothing, unless all can be made. Raises SettingsError."""
    results = read_results(folder)
    texts = {out: performance_page(results, folder.as_posix())}
    if quote is not None:
        texts[quote] = quoted(_read(quote), results, str(quote))
    for path, text in texts.items():
        write_whole(path, text)
    return list(texts)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path} cannot be read: {error}") from error
