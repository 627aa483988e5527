"""anthropic: messages, a stream with a tool call, its result, and counted tokens. Needs ANTHROPIC_BASE_URL and
ANTHROPIC_API_KEY."""

from __future__ import annotations

from anthropic import Anthropic

MODEL = "fake"
TOOL = {
    "name": "get_weather",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
ASKED = [{"role": "user", "content": "What is the weather in Paris?"}]
client = Anthropic()

answer = client.messages.create(model=MODEL, max_tokens=100, messages=[{"role": "user", "content": "Hi"}])
assert answer.content[0].text == "Hello from Relevo."

with client.messages.stream(model=MODEL, max_tokens=200, messages=ASKED, tools=[TOOL]) as stream:
    message = stream.get_final_message()
assert message.stop_reason == "tool_use"
call = next(block for block in message.content if block.type == "tool_use")
assert call.input == {"city": "Paris"}
result = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call.id, "content": "sunny"}]}
turns = [*ASKED, {"role": "assistant", "content": message.content}, result]
told = client.messages.create(model=MODEL, max_tokens=100, messages=turns, tools=[TOOL])
assert told.content[0].text.startswith("It is sunny")

counted = client.messages.count_tokens(model=MODEL, messages=turns, tools=[TOOL])
used = told.usage
assert counted.input_tokens == used.input_tokens + used.cache_read_input_tokens + used.cache_creation_input_tokens
