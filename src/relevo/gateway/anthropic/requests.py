"""A request of Anthropic's as a neutral `ChatPrompt` and `OutputFormat`, the same for an answer and for a count."""

from __future__ import annotations

from typing import Any

from relevo.core.errors import InvalidRequest
from relevo.gateway.anthropic.blocks import Skipped
from relevo.gateway.anthropic.conversation import conversation, is_begun_answer
from relevo.gateway.anthropic.schemas import ConversationFields
from relevo.gateway.anthropic.tools import tool_choice_of, tools_of
from relevo.gateway.generation.reasoning import switched, with_effort
from relevo.gateway.generation.spec import ChatPrompt, OutputFormat
from relevo.gateway.http.call import Call

_THINKS = {"enabled": True, "adaptive": True, "disabled": False}


def chat_prompt(call: Call, fields: ConversationFields) -> ChatPrompt:
    """Raises InvalidRequest. What of it has no effect is noted in the log."""
    skipped = Skipped()
    messages = conversation(fields.system, fields.messages, skipped)
    tools = tools_of(fields.tools, skipped)
    template_kwargs = _template_kwargs(fields, skipped)
    call.field_warnings.note(skipped.names)
    if not messages:
        raise InvalidRequest("'messages' hold no text.", param="messages")
    return ChatPrompt(
        messages=messages,
        tools=tools,
        tool_choice=tool_choice_of(fields.tool_choice),
        continue_final_message=is_begun_answer(messages),
        template_kwargs=template_kwargs,
    )


def output_format_of(fields: ConversationFields) -> OutputFormat | None:
    """Raises InvalidRequest."""
    in_config = (fields.output_config or {}).get("format")
    given, param = (in_config, "output_config.format") if in_config else (fields.output_format, "output_format")
    if not given:
        return None
    if not isinstance(given, dict) or given.get("type") != "json_schema" or not isinstance(given.get("schema"), dict):
        raise InvalidRequest(f"'{param}' must be of type 'json_schema' and have a 'schema', an object.", param=param)
    return OutputFormat(kind="json_schema", value=given["schema"], param=param)


def _template_kwargs(fields: ConversationFields, skipped: Skipped) -> dict[str, Any]:
    """As templates name them. Not said: what the model does by itself."""
    effort = (fields.output_config or {}).get("effort")
    if effort is not None and not isinstance(effort, str):
        raise InvalidRequest("'output_config.effort' must be a string.", param="output_config.effort")
    kwargs: dict[str, Any] = {}
    if fields.thinking is not None:
        kind = fields.thinking.get("type")
        if not isinstance(kind, str) or kind not in _THINKS:
            raise InvalidRequest(
                f"'thinking.type' must be 'enabled', 'adaptive' or 'disabled', got {kind!r}.", param="thinking.type"
            )
        kwargs = switched(kwargs, is_on=_THINKS[kind])
        for name in ("budget_tokens", "display"):
            if name in fields.thinking:
                skipped.note("thinking", name)
    return with_effort(kwargs, effort, param="output_config.effort")
