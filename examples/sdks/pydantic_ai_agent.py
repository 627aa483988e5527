"""pydantic-ai: an agent with a tool, typed output by a tool and by the server, over OpenAI's two APIs."""

from __future__ import annotations

from pydantic import BaseModel
from pydantic_ai import Agent, NativeOutput
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel


class Person(BaseModel):
    name: str
    age: int


for model in (OpenAIChatModel("fake"), OpenAIResponsesModel("fake")):
    agent = Agent(model)

    @agent.tool_plain
    def get_weather(city: str) -> str:
        """The weather of a city."""
        return f"sunny in {city}, 21 degrees"

    assert agent.run_sync("What is the weather in Paris?").output.startswith("It is sunny"), model
    typed = Agent(model, output_type=Person)
    assert typed.run_sync("Who wrote the first program?").output == Person(name="Ada", age=36), model
    native = Agent(model, output_type=NativeOutput(Person, name="somebody"))
    assert native.run_sync("Who wrote the first program?").output == Person(name="Ada", age=36), model
