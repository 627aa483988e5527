"""What a chat template takes, found by rendering small conversations with it once, at the start.

Asking beats reading: templates refuse, drop or misprint what they were not written for. Knows neither tokens nor HTTP.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

from relevo.core.errors import InvalidRequest
from relevo.gateway.text.call_ids import CallIdForm
from relevo.gateway.text.chat_messages import ContentForm, MessageForm, fit_messages
from relevo.gateway.text.turns import TurnForm

_PROBE = "relevo-probe"
_PROBE_TOOL = "relevo_probe_tool"
_PROBE_AS_VALUE = re.compile(rf"""['"]text['"]: ['"]{_PROBE}""")
_NINE_ID = "relevo000"
_LONG_ID = "call_relevo_probe_id"
_THOUGHT_NAMES = ("reasoning_content", "reasoning", "thinking")
_COUNTED_IDS = "<|tool_call_begin|>"  # Kimi's mark: its template copies ids, which the model then reads as names

Render = Callable[[list[dict[str, Any]], Sequence[Mapping[str, Any]] | None], str]


class TemplateProbes:
    """`render` raises InvalidRequest for what the template refuses."""

    def __init__(self, template: str, render: Render) -> None:
        self._template = template
        self._render = render

    @cached_property
    def is_usable(self) -> bool:
        """Whether a plain question is in the prompt."""
        return self._takes_parts or self._takes_strings

    @cached_property
    def form(self) -> MessageForm:
        both = ContentForm.EITHER if self._takes_strings else ContentForm.PARTS
        return MessageForm(
            content=both if self._takes_parts else ContentForm.STRING,
            asks_for_none=self._asks_for_none(),
            knows_developer=self._shows([_said("developer"), _said("user", "")]),
            wants_argument_text=self._takes_call("{}") and not self._takes_call({}),
            thought_names=tuple(name for name in _THOUGHT_NAMES if re.search(rf"\b{name}\b", self._template)),
            call_ids=self._call_id_form(),
            turns=self._turns(),
        )

    @cached_property
    def shows_tools(self) -> bool:
        """Whether the template writes what a tool is called, so that the model can know of it."""
        function = {"name": _PROBE_TOOL, "description": "", "parameters": {"type": "object", "properties": {}}}
        messages = fit_messages([_said("user", "")], MessageForm(content=self._content_form))
        try:
            return _PROBE_TOOL in self._render(messages, [{"type": "function", "function": function}])
        except InvalidRequest:
            return False

    @property
    def _content_form(self) -> ContentForm:
        return ContentForm.STRING if self._takes_strings else ContentForm.PARTS

    @cached_property
    def _takes_parts(self) -> bool:
        return self._shows([{"role": "user", "content": [{"type": "text", "text": _PROBE}]}])

    @cached_property
    def _takes_strings(self) -> bool:
        return self._shows([_said("user")])

    def _shows(self, messages: list[dict[str, Any]]) -> bool:
        """Whether the template takes these messages and writes the probe as text, not as a Python value."""
        try:
            rendered = self._render(messages, None)
        except InvalidRequest:
            return False
        return _PROBE in rendered and not _PROBE_AS_VALUE.search(rendered)

    def _shows_fitted(self, *messages: dict[str, Any]) -> bool:
        return self._shows(fit_messages(messages, MessageForm(content=self._content_form)))

    def _turns(self) -> TurnForm:
        """A template that takes no plain question is asked nothing more."""
        if not self.is_usable:
            return TurnForm()
        question, reply = _said("user", "q"), _said("assistant", "a")
        return TurnForm(
            knows_system=self._shows_fitted(_said("system"), question),
            takes_late_system=self._shows_fitted(question, reply, _said("system"), question),
            takes_repeated_roles=self._shows_fitted(question, _said("user"))
            and self._shows_fitted(question, reply, _said("assistant"), question),
        )

    def _call_id_form(self) -> CallIdForm:
        if _COUNTED_IDS in self._template:
            return CallIdForm.COUNTED
        takes_nine_alone = self._takes_call({}, _NINE_ID) and not self._takes_call({}, _LONG_ID)
        return CallIdForm.NINE if takes_nine_alone else CallIdForm.ANY

    def _takes_call(self, arguments: Any, call_id: str = _NINE_ID) -> bool:
        try:
            self._render(self._with_call(arguments, call_id), None)
        except InvalidRequest:
            return False
        return True

    def _with_call(self, arguments: Any, call_id: str, content: Any = "") -> list[dict[str, Any]]:
        call = {"id": call_id, "type": "function", "function": {"name": _PROBE_TOOL, "arguments": arguments}}
        result = {"role": "tool", "tool_call_id": call_id, "name": _PROBE_TOOL, "content": ""}
        return [_said("user", ""), {"role": "assistant", "content": content, "tool_calls": [call]}, result]

    def _asks_for_none(self) -> bool:
        """Whether an answer without content is something else to the template than an answer of no text.

        Not if the template then fails or shows the word: it was written for texts.
        """

        def with_call(content: str | None) -> list[dict[str, Any]]:
            return self._with_call({}, _NINE_ID, content)

        def with_question(content: str | None) -> list[dict[str, Any]]:  # some refuse a chat that ends with an answer
            return [_said("user", ""), {"role": "assistant", "content": content}, _said("user", "")]

        return self._tells_none_from_text(with_question) or self._tells_none_from_text(with_call)

    def _tells_none_from_text(self, messages: Callable[[str | None], list[dict[str, Any]]]) -> bool:
        try:
            of_none = self._render(messages(None), None)
        except InvalidRequest:
            return False
        try:
            return "None" not in of_none and of_none != self._render(messages(""), None)
        except InvalidRequest:
            return True


def _said(role: str, content: str = _PROBE) -> dict[str, Any]:
    return {"role": role, "content": content}
