"""A group of commands of which one is meant where none is named."""

from __future__ import annotations

from typing import Any

from typer.core import TyperGroup


class WithDefault(TyperGroup):
    default_command: str

    @classmethod
    def of(cls, name: str) -> type[WithDefault]:
        return type("WithDefault", (cls,), {"default_command": name})

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] != "--help":
            args = [self.default_command, *args]
        return super().parse_args(ctx, args)
