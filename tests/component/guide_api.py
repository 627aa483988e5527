"""The HTTP API of docs/developers/api.md, made of the page's own text."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from relevo.gateway import routes
from relevo.gateway.http.route import Route

PAGE = Path(__file__).parents[2] / "docs" / "developers" / "api.md"
_MODULE = "relevo.gateway.tiny"


def routes_with_the_guides() -> tuple[Route, ...]:
    """The table, after a reader has followed the page: its folder, and its line."""
    source, line = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    module = ModuleType(_MODULE)
    sys.modules[_MODULE] = module
    exec(compile(source, str(PAGE), "exec"), vars(module))
    told: dict[str, Any] = {**vars(routes), "TINY_ROUTES": module.TINY_ROUTES}
    exec(line, told)
    found: tuple[Route, ...] = told["ROUTES"]
    return found


ROUTES_WITH_THE_GUIDES = routes_with_the_guides()
