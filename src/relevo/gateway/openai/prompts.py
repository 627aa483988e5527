"""What a client sent as prompt, as token ids: template, tokenisation, context length.

Runs in worker threads when the text is long. Does not know sampling or HTTP.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from relevo.core.errors import ContextLengthExceeded, InvalidRequest
from relevo.core.ids import TokenId
from relevo.gateway.http.errors import context_overflow_message
from relevo.gateway.openai.bounds import check_choices
from relevo.gateway.openai.sampling import check_token_ids
from relevo.gateway.openai.schemas import ChatFields, CompletionFields, TokenizeFields
from relevo.gateway.text.prompt_length import encode_within
from relevo.gateway.text.served_models import ServedModel
from relevo.policy.routing.affinity import without_markers

_ROLES_THAT_NEED_CONTENT = frozenset(("system", "developer", "user", "tool"))


@dataclass(frozen=True, slots=True)
class Prompt:
    token_ids: list[TokenId]
    text: str | None = None  # set where the answer must repeat it


def chat_token_ids(served: ServedModel, fields: ChatFields) -> list[TokenId]:
    """The templated and tokenised conversation. Raises InvalidRequest, ContextLengthExceeded."""
    _refuse_template(fields.chat_template)
    tools = None if fields.tool_choice == "none" else fields.tools
    template_kwargs = dict(fields.chat_template_kwargs)
    if fields.reasoning_effort is not None:
        template_kwargs.setdefault("reasoning_effort", fields.reasoning_effort)
    text = render_messages(
        served, fields.messages, tools, fields.add_generation_prompt, fields.continue_final_message, template_kwargs
    )
    return check_prompt(served, _encode(served, text, fields.add_special_tokens, "messages"), "messages")


def completion_prompts(served: ServedModel, fields: CompletionFields) -> list[Prompt]:
    """One prompt per text or list of token ids. Raises InvalidRequest, ContextLengthExceeded."""
    prompts: list[Prompt] = []
    items = _split_prompts(fields.prompt)
    check_choices(len(items), fields.n)
    for item in items:
        if isinstance(item, str):
            token_ids = _encode(served, item, fields.add_special_tokens, "prompt") if item else []
            text = item
        else:
            check_length(served, len(item), "prompt")
            token_ids = check_token_ids(item, served.vocab_size, "prompt")
            text = served.tokenizer.decode(token_ids) if fields.echo else ""
        prompts.append(Prompt(check_prompt(served, token_ids, "prompt"), text if fields.echo else None))
    return prompts


def tokenize_token_ids(served: ServedModel, fields: TokenizeFields) -> list[TokenId]:
    """What the same prompt or messages would be as a request; no length limit."""
    if (fields.prompt is None) == (fields.messages is None):
        raise InvalidRequest("Give either 'prompt' or 'messages'.", param="prompt")
    _refuse_template(fields.chat_template)
    if fields.messages is None:
        add_special_tokens = True if fields.add_special_tokens is None else fields.add_special_tokens
        return served.tokenizer.encode(fields.prompt or "", add_special_tokens=add_special_tokens)
    text = render_messages(
        served,
        fields.messages,
        fields.tools,
        fields.add_generation_prompt,
        fields.continue_final_message,
        dict(fields.chat_template_kwargs),
    )
    return served.tokenizer.encode(text, add_special_tokens=bool(fields.add_special_tokens))


def render_messages(
    served: ServedModel,
    messages: list[dict[str, Any]],
    tools: list[dict[str, Any]] | None,
    add_generation_prompt: bool | None,
    continue_final_message: bool,
    template_kwargs: dict[str, Any],
) -> str:
    """Prompt text of a conversation. Raises InvalidRequest."""
    if served.chat_template is None:
        raise InvalidRequest("This model has no chat template; use /v1/completions.", param="messages")
    if add_generation_prompt and continue_final_message:
        raise InvalidRequest(
            "'add_generation_prompt' and 'continue_final_message' cannot both be true.", param="continue_final_message"
        )
    for index, message in enumerate(messages):
        _check_message(message, f"messages[{index}]")
    reserved = {"messages", "tools", "add_generation_prompt", "continue_final_message", "chat_template"}
    if clash := sorted(reserved & template_kwargs.keys()):
        raise InvalidRequest(
            f"'chat_template_kwargs' must not set {clash[0]!r}; it is a field of the request.",
            param="chat_template_kwargs",
        )
    return served.chat_template.render(
        without_markers(messages),
        tools=without_markers(tools) if tools else None,
        add_generation_prompt=not continue_final_message if add_generation_prompt is None else add_generation_prompt,
        continue_final_message=continue_final_message,
        **template_kwargs,
    )


def check_prompt(served: ServedModel, token_ids: list[TokenId], param: str) -> list[TokenId]:
    """`token_ids` unchanged, if there are any, they leave room for one more token, and the model has all of them."""
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
    return token_ids


def check_length(served: ServedModel, num_tokens: int, param: str, *, is_lower_bound: bool = False) -> None:
    """Raises ContextLengthExceeded unless one more token fits."""
    if num_tokens >= served.max_model_len:
        message = context_overflow_message(served.max_model_len, num_tokens, is_lower_bound=is_lower_bound)
        raise ContextLengthExceeded(message, param=param)


def _encode(served: ServedModel, text: str, add_special_tokens: bool, param: str) -> list[TokenId]:
    """Raises ContextLengthExceeded, early for a text that is far too long."""
    found = encode_within(served.tokenizer, text, served.max_model_len - 1, add_special_tokens=add_special_tokens)
    if isinstance(found, int):
        check_length(served, found, param, is_lower_bound=True)
        raise AssertionError("more tokens than fit")
    return found


def _refuse_template(chat_template: object) -> None:
    if chat_template is not None:
        raise InvalidRequest("Templates in requests are not accepted; the model's own is used.", param="chat_template")


def _check_message(message: dict[str, Any], path: str) -> None:
    role = message.get("role")
    if not isinstance(role, str) or not role:
        raise InvalidRequest(f"'{path}.role' must be a non-empty string.", param=f"{path}.role")
    content = message.get("content")
    if content is not None and not isinstance(content, str | list):
        raise InvalidRequest(f"'{path}.content' must be a string or a list of parts.", param=f"{path}.content")
    if content is None and role in _ROLES_THAT_NEED_CONTENT:
        raise InvalidRequest(f"'{path}.content' is missing.", param=f"{path}.content")
    for number, part in enumerate(content if isinstance(content, list) else ()):
        if not isinstance(part, dict) or not isinstance(part.get("type"), str):
            raise InvalidRequest(
                f"'{path}.content[{number}]' must be an object with a 'type'.", param=f"{path}.content[{number}]"
            )


def _split_prompts(prompt: str | list[Any]) -> Sequence[str | list[TokenId]]:
    if isinstance(prompt, str):
        return [prompt]
    if prompt and all(isinstance(item, int) for item in prompt):
        return [prompt]
    kinds = {type(item) for item in prompt}
    if len(kinds) > 1 or int in kinds:
        raise InvalidRequest("'prompt' mixes texts and token ids; send one kind.", param="prompt")
    if not prompt:
        raise InvalidRequest("'prompt' must not be empty.", param="prompt")
    return prompt
