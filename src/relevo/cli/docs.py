"""`python -m relevo.cli.docs FOLDER`: writes the pages that are generated from code."""

from __future__ import annotations

import sys
from pathlib import Path

from relevo.engines.promises import promises_markdown
from relevo.environment import PREFIX as ENVIRONMENT_PREFIX
from relevo.settings import Settings
from relevo.telemetry.metrics import metrics_markdown

ENGINES_GUIDE = "guides/engines.md"
_BEGIN = "<!-- made by `python -m relevo.cli.docs docs` from src/relevo/engines/promises.py -->\n"
_END = "<!-- end -->"


def settings_markdown() -> str:
    """docs/settings.md: one row per setting."""
    lines = [
        "# Settings of `relevo serve`",
        "",
        "Generated from `src/relevo/settings.py` (`make docs`). The command line wins over the environment.",
        "",
        "| flag | environment | default | meaning |",
        "|---|---|---|---|",
    ]
    for name, field in Settings.model_fields.items():
        positional = {"model": "`MODEL` (argument)", "engine_args": "`-- FLAGS` (arguments)"}
        flag = positional[name] if name in positional else f"`--{name.replace('_', '-')}`"
        default = field.default
        value = ",".join(default) if isinstance(default, tuple) else default
        shown = "" if value in (None, "", {}) else f"`{value}`"
        lines.append(f"| {flag} | `{ENVIRONMENT_PREFIX}{name.upper()}` | {shown} | {field.description} |")
    return "\n".join(lines) + "\n"


PAGES = {"settings.md": settings_markdown, "metrics.md": metrics_markdown}


def main() -> None:
    folder = Path(sys.argv[1])
    for name, make in PAGES.items():
        (folder / name).write_text(make(), encoding="utf-8")
    guide = folder / ENGINES_GUIDE
    guide.write_text(with_promises(guide.read_text(encoding="utf-8")), encoding="utf-8")


def with_promises(guide: str) -> str:
    """The guide to other engines, its tables made anew."""
    before, begin, rest = guide.partition(_BEGIN)
    _, end, after = rest.partition(_END)
    assert begin and end, "the guide has lost the marks around its tables"
    return f"{before}{begin}{promises_markdown()}{end}{after}"


if __name__ == "__main__":
    main()
