"""`python -m relevo.cli.docs FOLDER`: writes the pages that are generated from code."""

from __future__ import annotations

import sys
from pathlib import Path

from relevo.settings import settings_markdown
from relevo.telemetry.metrics import metrics_markdown

PAGES = {"settings.md": settings_markdown, "metrics.md": metrics_markdown}


def main() -> None:
    folder = Path(sys.argv[1])
    for name, make in PAGES.items():
        (folder / name).write_text(make(), encoding="utf-8")


if __name__ == "__main__":
    main()
