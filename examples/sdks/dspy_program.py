"""dspy: a typed prediction, asked for in its JSON form."""

from __future__ import annotations

import os

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"

import dspy


class Who(dspy.Signature):
    """Name a person."""

    question: str = dspy.InputField()
    name: str = dspy.OutputField()
    age: int = dspy.OutputField()


model = dspy.LM("openai/fake", api_base=os.environ["OPENAI_BASE_URL"], api_key="x", cache=False)
dspy.configure(lm=model, adapter=dspy.JSONAdapter())
person = dspy.Predict(Who)(question="Who wrote the first program?")
assert (person.name, person.age) == ("Ada", 36)
