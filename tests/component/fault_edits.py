"""How a scripted server is made to do one thing wrong: edits of requests, answers, chunks and statuses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from scripted_answers import Call, Reply, error
from scripted_openai import Fault


def request(edit: Callable[[dict[str, Any]], Any]) -> Fault:
    """Edits the JSON of every generating request."""

    def apply(call: Call) -> None:
        if isinstance(call.body, dict) and "completions" in call.path:
            edit(call.body)

    return Fault(request=apply)


def reply(edit: Callable[[Call, Reply], Any], path: str = "completions") -> Fault:
    def apply(call: Call, answer: Reply) -> None:
        if path in call.path:
            edit(call, answer)

    return Fault(reply=apply)


def whole(edit: Callable[[dict[str, Any]], Any], path: str = "completions", when: Callable[[Any], Any] = bool) -> Fault:
    """Edits the JSON of every answer that is not a stream and no error; `when` looks at the request's body."""

    def apply(call: Call, answer: Reply) -> None:
        if answer.status == 200 and answer.chunks is None and (call.body is None or when(call.body)):
            edit(answer.body)

    return reply(apply, path)


def chunks(edit: Callable[[list[Any]], Any], when: Callable[[Any], Any] = bool, path: str = "completions") -> Fault:
    """Edits the chunks of every stream."""

    def apply(call: Call, answer: Reply) -> None:
        if answer.chunks is not None and when(call.body):
            edit(answer.chunks)

    return reply(apply, path)


def status(when: Callable[[Call], bool], new_status: int = 200) -> Fault:
    """Answers wrong requests with another status."""

    def apply(call: Call, answer: Reply) -> None:
        if when(call):
            answer.status, answer.chunks = new_status, None
            answer.body = {} if new_status == 200 else error(new_status, "it broke").body

    return Fault(reply=apply)


def put(value: Any, *path: str | int) -> Callable[[Any], None]:
    """An edit that sets a member, or drops it if `value` is `...`."""

    def edit(body: Any) -> None:
        for step in path[:-1]:
            body = body[step]
        if value is ...:
            del body[path[-1]]
        else:
            body[path[-1]] = value

    return edit


def retext(change: Callable[[str], str], index: int = 0) -> Callable[[Any], None]:
    """An edit of the text of a whole answer."""

    def edit(body: Any) -> None:
        choice = body["choices"][index]
        if "message" in choice:
            choice["message"]["content"] = change(choice["message"]["content"])
        else:
            choice["text"] = change(choice["text"])

    return edit


def every_text(change: Callable[[str], str]) -> Callable[[list[Any]], None]:
    """An edit of the text of every chunk."""

    def edit(found: list[Any]) -> None:
        for chunk in found:
            for choice in chunk["choices"]:
                if "text" in choice:
                    choice["text"] = change(choice["text"])
                elif choice["delta"].get("content"):
                    choice["delta"]["content"] = change(choice["delta"]["content"])

    return edit


def first_entry(change: Callable[[dict[str, Any]], Any]) -> Callable[[Any], None]:
    def edit(body: Any) -> None:
        told = body["choices"][0]["logprobs"]
        if told:
            change(told["content"][0])

    return edit
