"""instructor: a typed answer by tools, by JSON and by a JSON schema."""

from __future__ import annotations

import instructor
from openai import OpenAI
from pydantic import BaseModel


class Person(BaseModel):
    name: str
    age: int


for mode in (instructor.Mode.TOOLS, instructor.Mode.JSON, instructor.Mode.JSON_SCHEMA):
    client = instructor.from_openai(OpenAI(), mode=mode)
    asked = [{"role": "user", "content": "Who wrote the first program?"}]
    person = client.chat.completions.create(model="fake", messages=asked, response_model=Person, max_retries=1)
    assert (person.name, person.age) == ("Ada", 36), mode
