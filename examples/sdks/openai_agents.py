"""openai-agents: an agent with a tool, and a typed answer, over its default API (Responses) and over chat."""

from __future__ import annotations

from agents import Agent, Runner, function_tool, set_default_openai_api, set_tracing_disabled
from pydantic import BaseModel

set_tracing_disabled(True)


class Person(BaseModel):
    name: str
    age: int


@function_tool
def get_weather(city: str) -> str:
    """The weather of a city."""
    return f"sunny in {city}, 21 degrees"


for api in ("responses", "chat_completions"):
    set_default_openai_api(api)
    agent = Agent(name="guide", instructions="Be brief.", model="fake", tools=[get_weather])
    answer = Runner.run_sync(agent, "What is the weather in Paris?")
    assert answer.final_output.startswith("It is sunny"), (api, answer.final_output)
    typed = Agent(name="who", model="fake", output_type=Person)
    assert Runner.run_sync(typed, "Who wrote the first program?").final_output == Person(name="Ada", age=36), api
