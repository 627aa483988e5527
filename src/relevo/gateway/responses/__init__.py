"""OpenAI's Responses API: requests as items, answers as items, and answers that are kept and gone on with."""
