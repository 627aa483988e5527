"""The grammar that an answer is held to while it is generated: of a forced call, of an output format, or none.

Made before the request runs, so that what cannot be held is refused with a status. Runs in worker threads.
"""

from __future__ import annotations

from relevo.core.errors import InvalidRequest
from relevo.gateway.generation.prompts import Prompt
from relevo.gateway.generation.spec import ChatPrompt, OutputFormat, PlainPrompt
from relevo.gateway.text.served_models import ServedModel


def grammar_of(
    served: ServedModel, asked: ChatPrompt | PlainPrompt, output_format: OutputFormat | None, prompt: Prompt
) -> str | None:
    """As llguidance serialises it; None: any text. Raises InvalidRequest."""
    if isinstance(asked, ChatPrompt) and asked.tool_choice.mode == "required":
        raise InvalidRequest("Forced tool calls are not supported yet; use 'auto' or 'none'.", param="tool_choice")
    if output_format is not None:
        raise InvalidRequest(f"'{output_format.param}' is not supported yet.", param=output_format.param)
    return None
