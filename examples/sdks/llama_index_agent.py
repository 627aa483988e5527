"""llama-index: a function-calling agent over an OpenAI-like model."""

from __future__ import annotations

import asyncio
import os

from llama_index.core.agent.workflow import FunctionAgent
from llama_index.llms.openai_like import OpenAILike


def get_weather(city: str) -> str:
    """The weather of a city."""
    return f"sunny in {city}, 21 degrees"


async def main() -> None:
    model = OpenAILike(
        model="fake",
        api_base=os.environ["OPENAI_BASE_URL"],
        api_key="x",
        is_chat_model=True,
        is_function_calling_model=True,
        context_window=100_000,
    )
    assert str(await model.acomplete("Hi")) == "Hello from Relevo."
    agent = FunctionAgent(tools=[get_weather], llm=model)
    answer = await agent.run("What is the weather in Paris?")
    assert str(answer).startswith("It is sunny"), str(answer)


asyncio.run(main())
