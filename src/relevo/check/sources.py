"""Who demands what: the documents that checks refer to, as they are named in reports."""

from __future__ import annotations

OPENAI_CHAT = "OpenAI API reference, Chat Completions"
OPENAI_STREAM = "OpenAI API reference, Chat Completions, streaming"
OPENAI_COMPLETIONS = "OpenAI API reference, Completions"
OPENAI_MODELS = "OpenAI API reference, Models"
OPENAI_ERRORS = "OpenAI API guide, Error codes"
OPENAI_DEBUGGING = "OpenAI API reference, Debugging requests"
OPENAI_CACHING = "OpenAI API guide, Prompt caching"
OPENAI_SDK = "behaviour of the OpenAI SDKs"
VLLM = "behaviour of vLLM's OpenAI-compatible server"
SSE = "WHATWG HTML, Server-sent events"
HTTP = "RFC 9110, HTTP Semantics"
JSON = "RFC 8259, JSON"
UNICODE = "The Unicode Standard, 3.9 (UTF-8)"
ISOLATION = "a request's answer depends on that request alone"
RECOVERY = "reports of leaks and wedged workers in serving stacks; see the guide"
