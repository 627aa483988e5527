"""Renders a conversation into the prompt text that the model was trained on, with the model's own Jinja template.

Owns the rendering, and which of a model's templates renders what. It knows no tokens and no
HTTP. Source: the chat template conventions of Hugging Face transformers (`apply_chat_template`).

Templates come with the model, so the operator answers for them; a template in a request is refused before it gets here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

import jinja2

from relevo.core.errors import InvalidRequest, ModelFileError
from relevo.core.model import TokenizerFiles
from relevo.gateway.text.chat_messages import fit_messages
from relevo.gateway.text.template_environment import TemplateRefusal, template_environment
from relevo.gateway.text.template_probes import TemplateProbes
from relevo.gateway.text.tool_emulation import needs_emulation, with_emulated_tools

Message = Mapping[str, Any]

_CONTINUE = "RELEVO_CONTINUES_HERE "  # the space shows whether the template trims what follows a message
_RESERVED = frozenset({"messages", "tools", "add_generation_prompt", "continue_final_message", "chat_template"})
_WITH_TOOLS = "tool_use"  # as transformers names it


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
            self._template = template_environment(local_time).from_string(template)
        except jinja2.TemplateSyntaxError as error:
            raise ModelFileError(f"the model's chat template, line {error.lineno}: {error.message}") from error
        given = special_tokens or {}
        self._special_tokens = {name: token for name, token in given.items() if token is not None}
        self.emulates_tools = False  # a model's templates together may, see `ModelTemplates`
        found = TemplateProbes(template, lambda messages, tools: self._render(messages, tools, True, {}))
        self.is_usable = found.is_usable  # False: not even a plain question is in the prompt
        self.knows_tools = found.shows_tools
        self._form = found.form

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
        except TemplateRefusal as refusal:
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


class ModelTemplates:
    """The templates of one model: one for requests with tools, if it has such, and one for all others."""

    def __init__(
        self, default: ChatTemplate, with_tools: ChatTemplate | None = None, *, may_emulate: bool = True
    ) -> None:
        """`may_emulate`: tools are told as text where no template has a place for them."""
        self._default = default
        self._with_tools = with_tools if with_tools is not None and with_tools.knows_tools else default
        self.is_usable = default.is_usable
        self.emulates_tools = may_emulate and not self.knows_tools

    @classmethod
    def from_files(cls, files: TokenizerFiles, *, may_emulate: bool = True) -> ModelTemplates | None:
        """None if the model has none for plain chats and serves completions only. Raises ModelFileError."""
        if files.chat_template is None:
            return None
        special = {name: getattr(files, name) for name in ("bos_token", "eos_token", "unk_token", "pad_token")}
        if files.additional_special_tokens:
            special["additional_special_tokens"] = list(files.additional_special_tokens)
        with_tools = files.named_templates.get(_WITH_TOOLS)
        default = ChatTemplate(files.chat_template, special)
        return cls(default, None if with_tools is None else ChatTemplate(with_tools, special), may_emulate=may_emulate)

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
        if self.emulates_tools and (tools or needs_emulation(messages)):
            return self._default.render(with_emulated_tools(messages, tools or ()), **options)
        return (self._with_tools if tools else self._default).render(messages, tools, **options)
