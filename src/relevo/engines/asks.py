"""What an engine is asked for one continuation of a request, and which requests it cannot be asked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from relevo.core.baton import SampleState
from relevo.core.errors import ContextLengthExceeded, InvalidGrammar, InvalidRequest, RelevoError
from relevo.core.request import EngineRequest
from relevo.engines.pool import Peer
from relevo.engines.words import EngineAsk

_SEED_BITS = 2**63 - 1  # engines take signed ones


def why_refused(request: EngineRequest, peer: Peer) -> RelevoError | None:
    """No engine of the pool can do it, or none of this kind."""
    sampling, engine = request.sampling, peer.spec.engine
    if sampling.grammar is not None:
        return InvalidGrammar(
            f"{engine} behind Relevo holds no output to a grammar; leave the format or the tool choice out"
        )
    if sampling.num_prompt_logprobs is not None and not peer.client.protocol.can_score_prompts:
        return InvalidRequest(f"{engine} behind Relevo tells no log-probabilities of prompts; leave them out")
    most = peer.facts.max_model_len
    if most and len(request.prompt_token_ids) >= most:
        return ContextLengthExceeded(
            f"The prompt has {len(request.prompt_token_ids)} tokens, and {engine} was started for {most} in all.",
            num_tokens=len(request.prompt_token_ids),
            max_tokens=most,
        )
    return None


def ask_for(
    request: EngineRequest,
    peer: Peer,
    name: str,
    *,
    sample: SampleState | None = None,
    fields: Mapping[str, Any] | None = None,
    prompt_only: bool = False,
) -> EngineAsk:
    """Only what is listed here gets to an engine. `prompt_only`: one token, of no interest, for the KV of the prompt.
    With a `sample` that has tokens it goes on after them."""
    sampling = request.sampling
    emitted = sample.output_token_ids if sample is not None else []
    index = sample.sample_index if sample is not None else 0
    prompt = (*request.prompt_token_ids, *emitted)
    most = peer.facts.max_model_len or 2**31
    stops = sampling.stop_token_ids if sampling.ignore_eos else (*sampling.stop_token_ids, *request.eos_token_ids)
    if prompt_only:
        sampling = replace(sampling, num_logprobs=None, logit_bias={}, n=1)
    return EngineAsk(
        name=name,
        model=peer.model,
        token_ids=prompt,
        sampling=sampling,
        max_tokens=1 if prompt_only else max(1, min(sampling.max_tokens - len(emitted), most - len(prompt))),
        min_tokens=0 if prompt_only else max(0, sampling.min_tokens - len(emitted)),
        stop_token_ids=() if prompt_only else tuple(dict.fromkeys(stops)),
        seed=(sampling.seed + index) & _SEED_BITS,
        salt=peer.salted(request.salt),
        fields=fields or {},
    )
