"""What a client asks of the service, from headers and body: class, priority, deadlines, objectives.

Headers win over the body, so that a proxy can set them for clients that know nothing of them. Sources: vLLM
(`priority`, `x-vllm-priority`), OpenAI (`service_tier`), Gateway API Inference Extension and llm-d (`x-llm-d-slo-*-ms`,
`x-gateway-inference-fairness-id`)."""

from __future__ import annotations

import math
from collections.abc import Mapping

from relevo.core.errors import InvalidRequest
from relevo.core.ports import MAX_DURATION_S
from relevo.core.request import ServiceTerms

TIMEOUT_HEADER = "x-request-timeout"  # seconds, from acceptance to the last token
TTFT_HEADERS = ("x-llm-d-slo-ttft-ms", "x-slo-ttft-ms")
TPOT_HEADERS = ("x-llm-d-slo-tpot-ms", "x-slo-tpot-ms")
CLASS_HEADER = "x-relevo-class"
PRIORITY_HEADERS = ("x-relevo-priority", "x-vllm-priority")
FAIRNESS_HEADER = "x-gateway-inference-fairness-id"
BATCH_TIERS = ("batch", "flex")
DEFAULT_TIER = "default"  # OpenAI's word for what all others are served by
MAX_PRIORITY = 2**31 - 1
MAX_FAIRNESS_ID = 128  # characters


def service_terms(headers: Mapping[str, str], service_tier: str | None, tenant: str) -> ServiceTerms:
    """Raises InvalidRequest for a header that cannot be read. Without API keys a fairness id stands for a tenant."""
    return ServiceTerms(
        tenant=tenant or headers.get(FAIRNESS_HEADER, "")[:MAX_FAIRNESS_ID],
        is_batch=_is_batch(headers.get(CLASS_HEADER), service_tier),
        timeout_s=_positive(headers, (TIMEOUT_HEADER,), 1.0),
        ttft_s=_positive(headers, TTFT_HEADERS, 1e-3),
        tpot_s=_positive(headers, TPOT_HEADERS, 1e-3),
    )


def told_tier(asked: str | None, terms: ServiceTerms) -> str | None:
    """What an answer says of the tier that served it; None: the request named none."""
    if asked is None:
        return None
    return asked if terms.is_batch and asked in BATCH_TIERS else DEFAULT_TIER


def priority_of(headers: Mapping[str, str], in_body: int, best_priority: int) -> int:
    """Lower is earlier, `best_priority` the least that the caller may ask for. Raises InvalidRequest."""
    priority, named = _asked_priority(headers, in_body)
    if abs(priority) > MAX_PRIORITY:
        raise InvalidRequest(f"{named} must be between -{MAX_PRIORITY} and {MAX_PRIORITY}.", param="priority")
    if priority < best_priority:
        raise InvalidRequest(
            f"{named} is {priority}, and the best priority granted here is {best_priority}: send {best_priority} or "
            "more (lower is served earlier), or ask the operator for an API key with a better --best-priority.",
            param="priority",
        )
    return priority


def _asked_priority(headers: Mapping[str, str], in_body: int) -> tuple[int, str]:
    """And what said so."""
    for name in PRIORITY_HEADERS:
        text = headers.get(name)
        if text is None:
            continue
        try:
            return int(text), f"The header {name}"
        except ValueError:
            raise InvalidRequest(f"The header {name} must be a whole number; lower is served earlier.") from None
    return in_body, "priority"


def _is_batch(asked: str | None, service_tier: str | None) -> bool:
    if asked is None:
        return service_tier in BATCH_TIERS
    if asked.lower() not in ("batch", "interactive"):
        raise InvalidRequest(f"The header {CLASS_HEADER} must be 'batch' or 'interactive'.")
    return asked.lower() == "batch"


def _positive(headers: Mapping[str, str], names: tuple[str, ...], unit_s: float) -> float | None:
    """Seconds; None if no such header was sent."""
    for name in names:
        text = headers.get(name)
        if text is None:
            continue
        try:
            value_s = float(text) * unit_s
        except ValueError:
            value_s = math.nan
        if not 0.0 < value_s <= MAX_DURATION_S:
            unit = "seconds" if unit_s == 1.0 else "milliseconds"
            most = MAX_DURATION_S / unit_s
            raise InvalidRequest(f"The header {name} must be a number of {unit} above 0, at most {most:.0f}.")
        return value_s
    return None
