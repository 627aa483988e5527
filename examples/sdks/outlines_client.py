"""outlines: an answer held to a type by the server."""

from __future__ import annotations

import outlines
from openai import OpenAI
from pydantic import BaseModel


class Person(BaseModel):
    name: str
    age: int


model = outlines.from_openai(OpenAI(), "fake")
assert Person.model_validate_json(model("Who wrote the first program?", Person)) == Person(name="Ada", age=36)
