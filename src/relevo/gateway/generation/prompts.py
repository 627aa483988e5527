"""What a request has as prompts, as token ids: template, tokenisation, context length.

Runs in worker threads when the text is long. Does not know sampling or HTTP.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from relevo.core.errors import ContextLengthExceeded, InvalidRequest
from relevo.core.ids import TokenId
from relevo.gateway.generation.sampling import check_token_ids
from relevo.gateway.generation.spec import ChatPrompt, PlainPrompt
from relevo.gateway.generation.tools import check_tools, shown_tool
from relevo.gateway.text.prompt_length import encode_within
from relevo.gateway.text.served_models import ServedModel
from relevo.policy.routing.affinity import without_markers

TAIL_CHARS = 256  # arbitrary: holds what any template writes behind the last message
_ROLES_THAT_NEED_CONTENT = frozenset(("system", "developer", "user"))


@dataclass(frozen=True, slots=True)
class Prompt:
    token_ids: tuple[TokenId, ...]
    text: str | None = None  # set where the answer must repeat it
    tail: str = ""  # the last characters of a conversation's text


def tokenized(served: ServedModel, prompt: ChatPrompt | PlainPrompt) -> Prompt:
    """Raises InvalidRequest, ContextLengthExceeded."""
    if isinstance(prompt, ChatPrompt):
        text = rendered(served, prompt)
        token_ids = _encode(served, text, prompt.add_special_tokens, "messages")
        return Prompt(_checked(served, token_ids, "messages"), tail=text[-TAIL_CHARS:])
    content = prompt.content
    if isinstance(content, str):
        token_ids = _encode(served, content, prompt.add_special_tokens, "prompt") if content else []
        text = content
    else:
        check_length(served, len(content), "prompt")
        token_ids = list(check_token_ids(content, served.vocab_size, "prompt"))
        text = served.tokenizer.decode(token_ids) if prompt.is_repeated else ""
    return Prompt(_checked(served, token_ids, "prompt"), text if prompt.is_repeated else None)


def count_tokens(served: ServedModel, prompt: ChatPrompt, max_chars: int) -> int:
    """How many tokens `tokenized` would make of it, whether they fit or not.

    Raises InvalidRequest; ContextLengthExceeded, of a text of more than `max_chars` that need not be read to its end to
    know that it does not fit.
    """
    text = rendered(served, prompt)
    if len(text) <= max_chars:
        return len(served.tokenizer.encode(text, add_special_tokens=prompt.add_special_tokens))
    return len(_encode(served, text, prompt.add_special_tokens, "messages"))


def rendered(served: ServedModel, prompt: ChatPrompt) -> str:
    """Prompt text of a conversation. Raises InvalidRequest."""
    if served.chat_template is None:
        raise InvalidRequest("This model has no chat template; use /v1/completions.", param="messages")
    if prompt.add_generation_prompt and prompt.continue_final_message:
        raise InvalidRequest(
            "'add_generation_prompt' and 'continue_final_message' cannot both be true.", param="continue_final_message"
        )
    check_tools(served, prompt)
    for index, message in enumerate(prompt.messages):
        _check_message(message, f"messages[{index}]")
    reserved = {"messages", "tools", "add_generation_prompt", "continue_final_message", "chat_template"}
    if clash := sorted(reserved & prompt.template_kwargs.keys()):
        raise InvalidRequest(
            f"'chat_template_kwargs' must not set {clash[0]!r}; it is a field of the request.",
            param="chat_template_kwargs",
        )
    opens = prompt.add_generation_prompt
    return served.chat_template.render(
        without_markers(prompt.messages),
        tools=without_markers([shown_tool(tool) for tool in prompt.shown_tools]) or None,
        add_generation_prompt=not prompt.continue_final_message if opens is None else opens,
        continue_final_message=prompt.continue_final_message,
        **prompt.template_kwargs,
    )


def _checked(served: ServedModel, token_ids: list[TokenId], param: str) -> tuple[TokenId, ...]:
    """`token_ids`, if there are any, they leave room for one more token, and the model has all of them."""
    if not token_ids:
        raise InvalidRequest(f"'{param}' must not be empty.", param=param)
    check_length(served, len(token_ids), param)
    if (highest := max(token_ids)) >= served.vocab_size:
        name = served.tokenizer.token_to_bytes(highest).decode(errors="replace")
        raise InvalidRequest(
            f"'{param}' holds the token {name!r} (id {highest}), which the tokenizer knows and the model does not: "
            f"it has {served.vocab_size} tokens; leave that text out.",
            param=param,
        )
    return tuple(token_ids)


def check_length(served: ServedModel, num_tokens: int, param: str, *, is_lower_bound: bool = False) -> None:
    """Raises ContextLengthExceeded unless one more token fits."""
    if num_tokens >= served.max_model_len:
        message = context_overflow_message(served.max_model_len, num_tokens, is_lower_bound=is_lower_bound)
        raise ContextLengthExceeded(message, param=param, num_tokens=num_tokens, max_tokens=served.max_model_len)


def _encode(served: ServedModel, text: str, add_special_tokens: bool, param: str) -> list[TokenId]:
    """Raises ContextLengthExceeded, early for a text that is far too long."""
    found = encode_within(served.tokenizer, text, served.max_model_len - 1, add_special_tokens=add_special_tokens)
    if isinstance(found, int):
        check_length(served, found, param, is_lower_bound=True)
        raise AssertionError("more tokens than fit")
    return found


def _check_message(message: Mapping[str, Any], path: str) -> None:
    role = message.get("role")
    if not isinstance(role, str) or not role:
        raise InvalidRequest(f"'{path}.role' must be a non-empty string.", param=f"{path}.role")
    content = message.get("content")
    if content is not None and not isinstance(content, str | list) and role != "tool":
        raise InvalidRequest(f"'{path}.content' must be a string or a list of parts.", param=f"{path}.content")
    if content is None and role in _ROLES_THAT_NEED_CONTENT:
        raise InvalidRequest(f"'{path}.content' is missing.", param=f"{path}.content")
    for number, part in enumerate(content if isinstance(content, list) and role != "tool" else ()):
        if not isinstance(part, dict) or not isinstance(part.get("type"), str):
            raise InvalidRequest(
                f"'{path}.content[{number}]' must be an object with a 'type'.", param=f"{path}.content[{number}]"
            )


def context_overflow_message(max_model_len: int, num_prompt_tokens: int, *, is_lower_bound: bool = False) -> str:
    """Agents match this sentence to decide that a conversation must be compacted; change not one word.

    `is_lower_bound`: of a prompt that was not read to its end; said as vLLM says it.
    """
    at_least = "at least " if is_lower_bound else ""
    return (
        f"This model's maximum context length is {max_model_len} tokens. However, your prompt contains "
        f"{at_least}{num_prompt_tokens} input tokens. Please reduce the length of the input messages."
    )
