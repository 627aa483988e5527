"""Writes the notices of what is compiled into the module: nanobind's licence, and that of robin-map, which it carries.

Both are read from the nanobind that is compiled, so that a wheel tells the terms of what is in it.
"""

import sys
from importlib import metadata
from pathlib import Path

import nanobind


def nanobind_licence() -> str:
    found = metadata.distribution("nanobind")
    files = [file for file in found.files or () if file.name == "LICENSE"]
    return Path(str(found.locate_file(files[0]))).read_text(encoding="utf-8")


def robin_map_licence() -> str:
    """The comment at the head of its header, without the comment's marks."""
    header = Path(nanobind.__file__).parent / "ext" / "robin_map" / "include" / "tsl" / "robin_map.h"
    comment, _, _ = header.read_text(encoding="utf-8").partition("*/")
    lines = [line.strip().removeprefix("/**").removeprefix("*").strip() for line in comment.splitlines()]
    text = "\n".join(lines).strip() + "\n"
    if "Copyright" not in text:
        raise SystemExit(f"{header} begins without its licence")
    return text


sys.stdout.write(
    "The module relevo_native._native contains, compiled in:\n\n"
    f"nanobind {metadata.version('nanobind')}\n{'-' * 8}\n{nanobind_licence()}\n"
    f"robin-map (a part of nanobind)\n{'-' * 9}\n{robin_map_licence()}"
)
