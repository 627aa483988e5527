"""From what is wanted to engine requests: prompts as tokens, sampling, salt, names; made, and not yet running.

Runs in worker threads when the text is long. Does not know what an API's bodies look like.
"""

from __future__ import annotations

import hashlib
import itertools
import logging
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from relevo.core.ids import RequestId, TokenId
from relevo.core.request import BATCH_PRIORITY, EngineRequest, ServiceTerms
from relevo.gateway.generation.bounds import check_bounds, check_prompt_scores
from relevo.gateway.generation.choice import Choice, ChoiceOptions
from relevo.gateway.generation.grammar import grammar_of
from relevo.gateway.generation.prompt_scores import PromptScoring
from relevo.gateway.generation.prompts import Prompt, tokenized
from relevo.gateway.generation.reply_writer import Usage
from relevo.gateway.generation.run import PromptRun
from relevo.gateway.generation.sampling import for_prompt, resolve_sampling
from relevo.gateway.generation.spec import ChatPrompt, GenerationSpec, PlainPrompt
from relevo.gateway.generation.terms import priority_of, service_terms, told_tier
from relevo.gateway.held.problems import in_header
from relevo.gateway.http.call import Call
from relevo.gateway.text.call_ids import num_calls
from relevo.gateway.text.output_parser import ParserInput, plain_text
from relevo.gateway.text.served_models import ServedModel
from relevo.gateway.text.stop_strings import StopStringMatcher, StopStrings
from relevo.policy.routing.affinity import FROM_CONTENT, Affinity, affinity_of

log = logging.getLogger("relevo.gateway")

EXPLAIN_HEADER = "x-relevo-explain"  # of a request: any value asks for
TOOLS_HEADER = "x-relevo-tools"  # of a response: "emulated" where the template has no place for tools
NOTES_HEADER = "x-relevo-notes"  # of a response: what of its wishes is not held
ROUTE_HEADER = "x-relevo-route"  # of its response: who decodes, who computed the prompt, and why


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A validated request, ready to run. Nothing of what the client sent is kept but this."""

    model: str  # the served name that the client asked for
    prompts: tuple[Prompt, ...]
    runs: tuple[PromptRun, ...]  # one per prompt
    num_choices: int  # of all prompts
    is_streamed: bool
    tells_tokens: bool
    service_tier: str | None = None  # that it is served by; None: it named none
    is_conversation: bool = False  # not the text of a prompt that is gone on with
    session: str = ""  # a hash of what its client calls the conversation; empty: it does not call it anything

    def usage(self) -> Usage:
        """Up to now."""
        return Usage(
            num_prompt_tokens=sum(run.num_prompt_tokens for run in self.runs),
            num_cached_tokens=sum(run.num_cached_tokens for run in self.runs),
            num_output_tokens=sum(run.num_output_tokens for run in self.runs),
            num_reasoning_tokens=sum(run.num_reasoning_tokens for run in self.runs),
        )


def prepare(call: Call, served: ServedModel, model: str, spec: GenerationSpec) -> Prepared:
    """Raises InvalidRequest, ContextLengthExceeded. `model`: the name that the client used."""
    check_bounds(spec)
    prompts = tuple(tokenized(served, prompt) for prompt in spec.prompts)
    check_prompt_scores(spec, sum(len(prompt.token_ids) for prompt in prompts))
    _tell_of_emulation(call, served, spec)
    runs = _Runs(call, served, model, spec)
    return Prepared(
        model=model,
        prompts=prompts,
        runs=tuple(runs.make(*each) for each in zip(itertools.count(), spec.prompts, prompts, strict=False)),
        num_choices=len(prompts) * spec.n,
        is_streamed=spec.is_streamed,
        tells_tokens=spec.tells_tokens,
        service_tier=runs.service_tier,
        is_conversation=any(isinstance(prompt, ChatPrompt) for prompt in spec.prompts),
        session=runs.named_session,
    )


def cache_salt(tenant: str, salt: str | None) -> bytes:
    """What keeps the KV blocks of one tenant, or of one `cache_salt`, from another; empty: shared by all."""
    if not tenant and salt is None:
        return b""
    return hashlib.sha256(f"{tenant}\0{salt or ''}".encode()).digest()


class _Runs:
    """Makes the runs of one request, with what they have in common."""

    def __init__(self, call: Call, served: ServedModel, model: str, spec: GenerationSpec) -> None:
        self._call, self._served, self._model, self._spec = call, served, model, spec
        self._sampling = resolve_sampling(
            spec, vocab_size=served.vocab_size, generation_defaults=served.generation_defaults
        )
        headers = call.request.headers
        self._terms: ServiceTerms = service_terms(headers, spec.service_tier, call.tenant)
        priority = priority_of(headers, spec.priority, call.caller.best_priority)
        self._priority = priority + BATCH_PRIORITY if self._terms.is_batch else priority
        self.named_session = ""  # of the last one made
        self._stops = StopStrings(spec.stop_strings) if spec.stop_strings else None
        self._options = ChoiceOptions(
            include_stop_string=spec.include_stop_string,
            min_tokens=spec.sampling.min_tokens,
            stop_token_ids=self._sampling.stop_token_ids,
            tells_tokens=spec.tells_tokens,
            is_prompt_only=spec.is_prompt_only,
        )

    @property
    def service_tier(self) -> str | None:
        return told_tier(self._spec.service_tier, self._terms)

    def make(self, number: int, asked: ChatPrompt | PlainPrompt, prompt: Prompt) -> PromptRun:
        call, served, spec = self._call, self._served, self._spec
        num_prompt_tokens = len(prompt.token_ids)
        session = self._session(asked, prompt)
        self.named_session = session.key.hex() if session.source != FROM_CONTENT else ""
        log.debug("%s: session %s, by %s", call.request_id, session.key.hex()[:8], session.source)
        request = EngineRequest(
            request_id=RequestId(uuid.uuid4().hex),  # never the client's: it must be unique
            prompt_token_ids=prompt.token_ids,
            sampling=for_prompt(
                replace(self._sampling, grammar=self._grammar(asked, prompt)),
                spec.sampling,
                num_room_tokens=served.max_model_len - num_prompt_tokens,
                default_max_tokens=spec.default_max_tokens or served.generation_defaults.get("max_new_tokens"),
                drawn_seed=served.draw_seed(),
            ),
            eos_token_ids=served.eos_token_ids,
            salt=cache_salt(call.tenant, spec.cache_salt),
            priority=self._priority,
            terms=self._terms,
            arrived_at_ns=call.accepted_at_ns,
            session=session.key,
        )
        return PromptRun(
            request,
            [self._choice(number * spec.n + sample, asked, prompt) for sample in range(spec.n)],
            generator=served.generator,
            clock=call.context.clock,
            metrics=call.context.metrics,
            latency=served.insight.latency,
            model=self._model,
            is_streamed=spec.is_streamed,
            on_first_output=_explainer(call, session.source),
            scoring=self._scoring(prompt),
            trace_id=call.trace.recorded_id if call.trace is not None else "",
        )

    def _grammar(self, asked: ChatPrompt | PlainPrompt, prompt: Prompt) -> str | None:
        """What the answer is held to; the client is told what it is not held to."""
        found = grammar_of(self._served, asked, self._spec.output_format, prompt)
        if found.notes:
            told = self._call.reply_headers[NOTES_HEADER] = in_header(found.notes)
            log.info("%s: %s", self._call.request_id, told)
        return found.grammar

    def _scoring(self, prompt: Prompt) -> PromptScoring | None:
        if self._spec.num_prompt_logprobs is None:
            return None
        assert self._spec.score_writer is not None, "what is asked for is shown"
        return PromptScoring(prompt.token_ids, self._spec.score_writer(prompt.token_ids))

    def _choice(self, index: int, asked: ChatPrompt | PlainPrompt, prompt: Prompt) -> Choice:
        """The text of a plain prompt is gone on with as it is, whatever a model does in conversations."""
        matcher = None
        if self._stops is not None:
            matcher = StopStringMatcher(self._stops, include_stop_str_in_output=self._spec.include_stop_string)
        served, parser, kept = self._served, plain_text(ParserInput(prompt.token_ids)), frozenset[TokenId]()
        if isinstance(asked, ChatPrompt):
            parser, kept = served.make_parser(_parser_input(asked, prompt)), served.markup_token_ids
        detokenizer = served.make_detokenizer(
            skip_special_tokens=self._spec.skip_special_tokens,
            continues_text=asked.continues_text,
            kept_token_ids=kept,
        )
        return Choice(index, self._options, detokenizer, parser, matcher)

    def _session(self, asked: ChatPrompt | PlainPrompt, prompt: Prompt) -> Affinity:
        """What the router knows the conversation by."""
        names = dict(self._spec.session)
        if isinstance(asked, ChatPrompt):
            names |= {"messages": asked.messages, "tools": asked.tools}
        else:
            names |= {"prompt": prompt.token_ids}
        return affinity_of(
            self._call.request.headers,
            names,
            tenant=self._call.tenant,
            model=self._model,
            extra_headers=self._call.context.affinity_headers,
        )


def _tell_of_emulation(call: Call, served: ServedModel, spec: GenerationSpec) -> None:
    shows_tools = any(isinstance(prompt, ChatPrompt) and prompt.shown_tools for prompt in spec.prompts)
    if shows_tools and served.chat_template is not None and served.chat_template.emulates_tools:
        call.reply_headers[TOOLS_HEADER] = "emulated"


def _parser_input(asked: ChatPrompt, prompt: Prompt) -> ParserInput:
    return ParserInput(
        prompt.token_ids,
        prompt.tail,
        asked.callable_tools,
        is_parallel=asked.tool_choice.is_parallel,
        num_earlier_calls=num_calls(asked.messages),
        continued_text=_last_text(asked) if asked.continues_text else "",
    )


def _last_text(asked: ChatPrompt) -> str:
    content = asked.messages[-1].get("content") if asked.messages else None
    if isinstance(content, list):
        texts = (part.get("text") if isinstance(part, Mapping) else part for part in content)
        return "".join(text for text in texts if isinstance(text, str))
    return content if isinstance(content, str) else ""


def _explainer(call: Call, session_source: str) -> Callable[[str], None] | None:
    """Adds the router's reasons to the response, for a client that asks for them, and what named the session."""
    if not call.request.headers.get(EXPLAIN_HEADER):
        return None

    def note(route: str) -> None:
        earlier = call.reply_headers.get(ROUTE_HEADER)
        told = f"{route} | session {session_source}"
        call.reply_headers[ROUTE_HEADER] = f"{earlier} || {told}" if earlier else told

    return note
