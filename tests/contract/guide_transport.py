"""The transport of docs/developers/transport.md, made of the page's own text."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType

from relevo.kv.transports import registry

PAGE = Path(__file__).parents[2] / "docs" / "developers" / "transport.md"
_MODULE = "relevo.kv.transports.heap"


def transports_with_the_guides() -> dict[str, registry.TransportKind]:
    """The registry, after a reader has followed the page: its file, and its line."""
    source, line = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    module = ModuleType(_MODULE)
    sys.modules[_MODULE] = module
    exec(compile(source, str(PAGE), "exec"), vars(module))
    return registry.TRANSPORTS | eval("{" + line + "}", vars(registry))


GUIDE = transports_with_the_guides()["heap"]
