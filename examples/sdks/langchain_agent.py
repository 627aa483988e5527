"""LangChain: bound tools, structured output by each of its three methods, and an agent."""

from __future__ import annotations

from langchain.agents import create_agent
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel


class Person(BaseModel):
    """A person."""

    name: str
    age: int


@tool
def get_weather(city: str) -> str:
    """The weather of a city."""
    return f"sunny in {city}, 21 degrees"


model = ChatOpenAI(model="fake")
called = model.bind_tools([get_weather]).invoke("What is the weather in Paris?")
assert called.tool_calls[0]["args"] == {"city": "Paris"}

streamed = None
for chunk in model.bind_tools([get_weather]).stream("What is the weather in Paris?"):
    streamed = chunk if streamed is None else streamed + chunk
assert streamed.tool_calls[0]["name"] == "get_weather"

for method in ("json_schema", "function_calling", "json_mode"):
    person = model.with_structured_output(Person, method=method).invoke("Who wrote the first program? Answer in JSON.")
    assert person == Person(name="Ada", age=36), method

agent = create_agent(model, tools=[get_weather])
turns = agent.invoke({"messages": [{"role": "user", "content": "What is the weather in Paris?"}]})["messages"]
assert turns[-1].content.startswith("It is sunny") and turns[-2].type == "tool"
