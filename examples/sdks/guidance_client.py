"""guidance: a conversation with a generated part."""

from __future__ import annotations

import os

from guidance import assistant, gen, models, user

model = models.OpenAI("fake", api_key="x", base_url=os.environ["OPENAI_BASE_URL"], echo=False)
with user():
    model += "Hi"
with assistant():
    model += gen(name="said")
assert model["said"] == "Hello from Relevo.", model["said"]
