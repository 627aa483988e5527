"""smolagents: an agent that calls tools until it gives a final answer."""

from __future__ import annotations

import os

from smolagents import OpenAIServerModel, ToolCallingAgent, tool


@tool
def get_weather(city: str) -> str:
    """The weather of a city.

    Args:
        city: its name
    """
    return f"sunny in {city}, 21 degrees"


model = OpenAIServerModel("fake", api_base=os.environ["OPENAI_BASE_URL"], api_key="x")
agent = ToolCallingAgent(tools=[get_weather], model=model, max_steps=3, verbosity_level=0)
print(agent.run("What is the weather in Paris?"))
called = [step for step in agent.memory.steps if getattr(step, "tool_calls", None)]
assert called[0].tool_calls[0].name == "get_weather"
