"""What a step brought: tokens with their ends, and prompt prefixes that are ready to travel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from relevo.core.baton import PrefillFacts, SampledToken
from relevo.core.events import TokenOutput
from relevo.core.ids import PeerId, WorkerId
from relevo.core.prompt_scores import PromptScores
from relevo.policy.worker import worker_requests
from relevo.policy.worker.remote_prefill import ComputedPrefix
from relevo.policy.worker.stopping import finish_reason

NS_PER_S = 1e9


@dataclass(frozen=True, slots=True)
class StepOutcome:
    outputs: Mapping[PeerId, Sequence[TokenOutput]]  # by the gateway that asked for the request
    prefixes: Sequence[ComputedPrefix] = ()

    @property
    def all_outputs(self) -> list[TokenOutput]:
        return [output for outputs in self.outputs.values() for output in outputs]


def take_tokens(
    sequence: worker_requests.Sequence, sampled: Sequence[SampledToken], worker_id: WorkerId, now_ns: int
) -> list[TokenOutput]:
    """Append one token to each sample of the sequence and decide which of them end."""
    state = sequence.parent
    outputs = []
    for sample, token in zip(sequence.samples, sampled, strict=True):
        sample.output_token_ids.append(token.token_id)
        sample.finish_reason = finish_reason(state.request, sample.output_token_ids, state.max_outputs)
        facts = prefill_facts(state, worker_id, now_ns) if state.owes_facts else None
        state.owes_facts = False
        outputs.append(
            TokenOutput(state.request.request_id, sample.sample_index, (token,), sample.finish_reason, facts)
        )
    return outputs


def scores_output(sequence: worker_requests.Sequence, scores: PromptScores) -> TokenOutput:
    """Of the prompt that all samples of the sequence have in common."""
    sample_index = sequence.samples[0].sample_index
    return TokenOutput(sequence.parent.request.request_id, sample_index, (), prompt_scores=scores)


def prefill_facts(state: worker_requests.WorkerRequest, worker_id: WorkerId, now_ns: int) -> PrefillFacts:
    first_ns = state.first_scheduled_at_ns if state.first_scheduled_at_ns is not None else now_ns
    return PrefillFacts(
        worker_id=worker_id,
        num_prompt_tokens=state.num_prompt_tokens,
        num_cached_tokens=state.num_cached_tokens,
        queue_s=(first_ns - state.accepted_at_ns) / NS_PER_S,
        prefill_s=(now_ns - first_ns) / NS_PER_S,
        num_chunks=state.num_chunks,
    )
