"""LiteLLM: chat with a tool and its result, the Responses API and Anthropic's messages through one client."""

from __future__ import annotations

import os

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"

import litellm

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOL = {"type": "function", "function": {"name": "get_weather", "description": "Weather", "parameters": SCHEMA}}
ASKED = [{"role": "user", "content": "What is the weather in Paris?"}]

for model in ("openai/fake", "hosted_vllm/fake"):
    where = {"model": model, "api_base": os.environ["OPENAI_BASE_URL"], "api_key": "x"}
    message = litellm.completion(messages=ASKED, tools=[TOOL], **where).choices[0].message
    call = message.tool_calls[0]
    result = {"role": "tool", "tool_call_id": call.id, "content": "sunny"}
    told = litellm.completion(messages=[*ASKED, message.model_dump(), result], tools=[TOOL], **where)
    assert told.choices[0].message.content.startswith("It is sunny")
    chunks = list(litellm.completion(messages=ASKED, tools=[TOOL], stream=True, **where))
    whole = litellm.stream_chunk_builder(chunks, messages=ASKED)
    assert whole.choices[0].message.tool_calls[0].function.arguments == call.function.arguments

where = {"api_base": os.environ["ANTHROPIC_BASE_URL"], "api_key": "x"}
told = litellm.completion(model="anthropic/fake", messages=[{"role": "user", "content": "Hi"}], max_tokens=50, **where)
assert told.choices[0].message.content == "Hello from Relevo."
