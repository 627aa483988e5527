"""Renders a conversation into the prompt text that the model was trained on, with the model's own Jinja template.

Owns the sandbox, what a template may call, and the fitting of messages to what the template understands. It knows no
tokens and no HTTP. Source: the chat template conventions of Hugging Face transformers (`apply_chat_template`).

Templates come with the model, so the operator answers for them; a template in a request is refused before it gets here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from relevo.core.errors import InvalidRequest, ModelFileError
from relevo.core.model import TokenizerFiles
from relevo.gateway.text.chat_messages import ContentForm, MessageForm, fit_messages

Message = Mapping[str, Any]

_PROBE = "relevo-probe"
_PROBE_TOOL = "relevo_probe_tool"
_PROBE_AS_VALUE = re.compile(rf"""['"]text['"]: ['"]{_PROBE}""")
_CONTINUE = "RELEVO_CONTINUES_HERE "  # the space shows whether the template trims what follows a message
_RESERVED = frozenset({"messages", "tools", "add_generation_prompt", "continue_final_message", "chat_template"})
_WITH_TOOLS = "tool_use"  # as transformers names it
_PROBE_CALL = {"id": "relevo000", "type": "function", "function": {"name": _PROBE_TOOL, "arguments": {}}}


class ChatTemplate:
    """One model's template, compiled once. `render` may be called from any thread."""

    def __init__(
        self,
        template: str,
        special_tokens: Mapping[str, Any] | None = None,
        *,
        local_time: Callable[[], datetime] = datetime.now,
    ) -> None:
        """special_tokens: `bos_token` and so on, as the template names them; one that is None is not defined there.

        Raises ModelFileError on bad syntax.
        """
        try:
            self._template = _environment(local_time).from_string(template)
        except jinja2.TemplateSyntaxError as error:
            raise ModelFileError(f"the model's chat template, line {error.lineno}: {error.message}") from error
        given = special_tokens or {}
        self._special_tokens = {name: token for name, token in given.items() if token is not None}
        takes_parts = self._shows([{"role": "user", "content": [{"type": "text", "text": _PROBE}]}])
        takes_strings = self._shows([{"role": "user", "content": _PROBE}])
        self.is_usable = takes_parts or takes_strings  # False: not even a plain question is in the prompt
        both = ContentForm.EITHER if takes_strings else ContentForm.PARTS
        self._form = MessageForm(
            content=both if takes_parts else ContentForm.STRING,
            asks_for_none=self._asks_for_none(),
            knows_developer=self._shows([{"role": "developer", "content": _PROBE}, {"role": "user", "content": ""}]),
        )
        self.knows_tools = self._shows_tools()

    def render(
        self,
        /,  # templates may have a variable of that name
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None = None,
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        **chat_template_kwargs: Any,
    ) -> str:
        """The prompt. Encode it without adding special tokens: the template writes them.

        continue_final_message: end the prompt inside the last message, which the model then goes on writing.
        Raises InvalidRequest if the messages hold what the template (or a text model) does not take.
        """
        taken = _RESERVED.intersection(chat_template_kwargs)
        if taken:
            raise InvalidRequest(f"chat_template_kwargs may not set {min(taken)}", param="chat_template_kwargs")
        if continue_final_message and add_generation_prompt:
            raise InvalidRequest(
                "continue_final_message and add_generation_prompt exclude each other; set one of them to false",
                param="continue_final_message",
            )
        fitted = fit_messages(messages, self._form)
        if continue_final_message:
            return self._render_continued(fitted, tools, chat_template_kwargs)
        return self._render(fitted, tools, add_generation_prompt, chat_template_kwargs)

    def _render(
        self,
        messages: list[dict[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None,
        add_generation_prompt: bool,
        variables: Mapping[str, Any],
    ) -> str:
        try:
            return self._template.render(
                {
                    "documents": None,
                    **self._special_tokens,
                    **variables,
                    "messages": messages,
                    "tools": list(tools) if tools else None,
                    "add_generation_prompt": add_generation_prompt,
                }
            )
        except _Refusal as refusal:
            raise InvalidRequest(str(refusal), param="messages") from refusal
        except Exception as error:  # whatever a template can raise that was not written for these messages
            raise InvalidRequest(
                f"the model's chat template cannot render these messages ({str(error) or type(error).__name__}); check "
                "that the roles alternate as the model expects, and that every message and tool call has its fields",
                param="messages",
            ) from error

    def _render_continued(
        self,
        messages: list[dict[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None,
        variables: Mapping[str, Any],
    ) -> str:
        """Mark the end of the last message's text, render, cut at the mark."""
        last = dict(messages[-1])
        content = last.get("content")
        if isinstance(content, str):
            last["content"] = content + _CONTINUE
        elif content:
            *before, final = content
            last["content"] = [*before, {**final, "text": final["text"] + _CONTINUE}]
        rendered = self._render([*messages[:-1], last], tools, False, variables)
        end = rendered.rfind(_CONTINUE.strip())
        if end < 0:
            raise InvalidRequest(
                "continue_final_message: the last message has no text that the chat template keeps", param="messages"
            )
        trimmed = not rendered.startswith(_CONTINUE, end)
        return rendered[:end].rstrip() if trimmed else rendered[:end]

    def _shows(self, messages: list[dict[str, Any]]) -> bool:
        """Whether the template takes these messages and writes the probe as text, not as a Python value."""
        try:
            rendered = self._render(messages, None, True, {})
        except InvalidRequest:
            return False
        return _PROBE in rendered and not _PROBE_AS_VALUE.search(rendered)

    def _shows_tools(self) -> bool:
        """Whether the template writes what a tool is called, so that the model can know of it."""
        function = {"name": _PROBE_TOOL, "description": "", "parameters": {"type": "object", "properties": {}}}
        messages = fit_messages([{"role": "user", "content": ""}], self._form)
        try:
            return _PROBE_TOOL in self._render(messages, [{"type": "function", "function": function}], True, {})
        except InvalidRequest:
            return False

    def _asks_for_none(self) -> bool:
        """Whether an answer without content is something else to the template than an answer of no text.

        Not if the template then fails or shows the word: it was written for texts.
        """
        return any(self._tells_none_from_text(**extra) for extra in ({}, {"tool_calls": [_PROBE_CALL]}))

    def _tells_none_from_text(self, **extra: Any) -> bool:
        def rendered(content: str | None) -> str:
            question, answer = {"role": "user", "content": ""}, {"role": "assistant", "content": content, **extra}
            result = {"role": "tool", "tool_call_id": _PROBE_CALL["id"], "name": _PROBE_TOOL, "content": ""}
            reply = result if extra else question  # some templates refuse a chat that ends with an answer
            return self._render([question, answer, reply], None, True, {})

        try:
            of_none = rendered(None)
        except InvalidRequest:
            return False
        try:
            return "None" not in of_none and of_none != rendered("")
        except InvalidRequest:
            return True


class ModelTemplates:
    """The templates of one model: one for requests with tools, if it has such, and one for all others."""

    def __init__(self, default: ChatTemplate, with_tools: ChatTemplate | None = None) -> None:
        self._default = default
        self._with_tools = with_tools if with_tools is not None and with_tools.knows_tools else default
        self.is_usable = default.is_usable

    @classmethod
    def from_files(cls, files: TokenizerFiles) -> ModelTemplates | None:
        """None if the model has none for plain chats and serves completions only. Raises ModelFileError."""
        if files.chat_template is None:
            return None
        special = {name: getattr(files, name) for name in ("bos_token", "eos_token", "unk_token", "pad_token")}
        if files.additional_special_tokens:
            special["additional_special_tokens"] = list(files.additional_special_tokens)
        with_tools = files.named_templates.get(_WITH_TOOLS)
        default = ChatTemplate(files.chat_template, special)
        return cls(default, None if with_tools is None else ChatTemplate(with_tools, special))

    @property
    def knows_tools(self) -> bool:
        return self._with_tools.knows_tools

    def render(
        self,
        /,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None = None,
        **options: Any,
    ) -> str:
        """As `ChatTemplate.render`."""
        return (self._with_tools if tools else self._default).render(messages, tools, **options)


class _Refusal(jinja2.TemplateError):
    """Raised by the template itself; the message is written for the client."""


class _GenerationBlock(jinja2.ext.Extension):
    """`{% generation %} ... {% endgeneration %}` marks what a model writes, for training; it renders its body."""

    tags = {"generation"}  # noqa: RUF012 (the type of the overridden attribute)

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return [jinja2.nodes.Scope(body).set_lineno(line)]


def _environment(local_time: Callable[[], datetime]) -> jinja2.Environment:
    def raise_exception(message: str) -> None:
        raise _Refusal(message)

    def strftime_now(time_format: str) -> str:
        return local_time().strftime(time_format)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlock, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = strftime_now
    return environment


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as models saw it in training; Jinja's own filter escapes for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
