"""From a command to the first token of a short prompt."""

from __future__ import annotations

from relevo.bench.client import OpenAIClient
from relevo.bench.peers.dialect import EXACT_LENGTH, Dialect, PromptForm
from relevo.bench.peers.prompts import PeerPrompt
from relevo.core.errors import StartError

FINE_POLL_S = 0.01  # between looks at a starting server: the cold start is known this exactly
FIRST_PROMPT = PeerPrompt(text="one two three four", token_ids=())


async def first_token_at_ns(client: OpenAIClient, model: str) -> int:
    """Of a short prompt, in whichever form the server takes it. Raises StartError."""
    for form in (PromptForm.TEXT, PromptForm.CHAT):
        dialect = Dialect(model=model, form=form, extra=EXACT_LENGTH)
        record = await dialect.ask(client, FIRST_PROMPT, 1)
        if record.chunk_at_ns:
            return record.chunk_at_ns[0]
    raise StartError(f"{client.url} gave no token for its first prompt: {record.error} {record.error_detail}")
