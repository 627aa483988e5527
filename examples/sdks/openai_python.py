"""openai: chat, streams, tools, a parsed answer, and the Responses API. Needs OPENAI_BASE_URL and OPENAI_API_KEY."""

from __future__ import annotations

from openai import OpenAI
from pydantic import BaseModel

MODEL = "fake"
WEATHER = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOL = {"type": "function", "function": {"name": "get_weather", "parameters": WEATHER}}
ASKED = [{"role": "user", "content": "What is the weather in Paris?"}]


class Person(BaseModel):
    name: str
    age: int


client = OpenAI()

answer = client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "Hi"}])
assert answer.choices[0].message.content == "Hello from Relevo."

with client.chat.completions.stream(model=MODEL, messages=ASKED, tools=[TOOL]) as stream:
    kinds = {event.type for event in stream}
    message = stream.get_final_completion().choices[0].message
assert "tool_calls.function.arguments.done" in kinds
call = message.tool_calls[0]
result = {"role": "tool", "tool_call_id": call.id, "content": "sunny, 21 degrees"}
told = client.chat.completions.create(model=MODEL, messages=[*ASKED, message, result], tools=[TOOL])
assert told.choices[0].message.content.startswith("It is sunny")

parsed = client.chat.completions.parse(
    model=MODEL, messages=[{"role": "user", "content": "Who wrote the first program?"}], response_format=Person
)
assert parsed.choices[0].message.parsed == Person(name="Ada", age=36)

response = client.responses.create(model=MODEL, input="Hi")
assert response.output_text == "Hello from Relevo."
tool = {"type": "function", "name": "get_weather", "parameters": WEATHER, "strict": False}
with client.responses.stream(model=MODEL, input=ASKED, tools=[tool]) as events:
    for _ in events:
        pass
    final = events.get_final_response()
call = next(item for item in final.output if item.type == "function_call")
outcome = {"type": "function_call_output", "call_id": call.call_id, "output": "sunny, 21 degrees"}
told = client.responses.create(model=MODEL, previous_response_id=final.id, input=[outcome], tools=[tool])
assert told.output_text.startswith("It is sunny")
person = client.responses.parse(model=MODEL, input="Who wrote the first program?", text_format=Person)
assert person.output_parsed == Person(name="Ada", age=36)
