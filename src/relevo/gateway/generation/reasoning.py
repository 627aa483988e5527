"""How much a model is to think, in the words of chat templates. Of no API."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from relevo.core.errors import InvalidRequest

EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")  # of OpenAI's and Anthropic's APIs
_SWITCHES = ("enable_thinking", "thinking")  # as the templates of Qwen and GLM, and of DeepSeek and Granite, call it


def with_effort(template_kwargs: Mapping[str, Any], effort: str | None, *, param: str) -> dict[str, Any]:
    """What a client wrote for the template itself wins. "none" switches thinking off where a template can.

    Raises InvalidRequest for a word of no API, which a template would ignore without a sound.
    """
    kwargs = dict(template_kwargs)
    if effort is not None:
        if effort not in EFFORTS:
            raise InvalidRequest(
                f"'{param}' must be one of {', '.join(EFFORTS)}, got {effort!r}; a word of the model's own goes into "
                "'chat_template_kwargs'.",
                param=param,
            )
        kwargs.setdefault("reasoning_effort", effort)
        if effort == "none":
            kwargs = switched(kwargs, is_on=False)
    return kwargs


def switched(template_kwargs: Mapping[str, Any], *, is_on: bool) -> dict[str, Any]:
    """Thinking on or off, unless the client said so to the template itself."""
    return dict.fromkeys(_SWITCHES, is_on) | dict(template_kwargs)
