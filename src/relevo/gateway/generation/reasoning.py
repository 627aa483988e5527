"""How much a model is to think, in the words of chat templates. Of no API."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_SWITCHES = ("enable_thinking", "thinking")  # as the templates of Qwen and GLM, and of DeepSeek and Granite, call it


def with_effort(template_kwargs: Mapping[str, Any], effort: str | None) -> dict[str, Any]:
    """What a client wrote for the template itself wins. "none" switches thinking off where a template can."""
    kwargs = dict(template_kwargs)
    if effort is not None:
        kwargs.setdefault("reasoning_effort", effort)
        if effort == "none":
            kwargs = switched(kwargs, is_on=False)
    return kwargs


def switched(template_kwargs: Mapping[str, Any], *, is_on: bool) -> dict[str, Any]:
    """Thinking on or off, unless the client said so to the template itself."""
    return dict.fromkeys(_SWITCHES, is_on) | dict(template_kwargs)
