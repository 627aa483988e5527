"""Grammars over the tokens of one model: compiled, and followed token by token.

Owns the only use of llguidance that knows tokens. Gateway and workers have the same class and so say the same of a
grammar: the gateway refuses what cannot be held before anything runs, the workers hold the output to it. Knows nothing
of JSON schemas, requests or sampling; a grammar is the text that llguidance serialises one to
(`LLMatcher.grammar_from_json_schema`, `grammar_from_regex`, `grammar_from_lark`).

    vocabulary = GrammarVocabulary.of(ModelVocabulary(files), vocab_size)   # once: 0.1 s per 25,000 tokens
    compiled = vocabulary.compile(grammar)                                  # raises InvalidGrammar
    matcher = compiled.start()                                              # 0.1 ms
    matcher.follow(output_token_ids)                                        # all so far; takes in what is new

Making a `GrammarVocabulary` holds the interpreter lock, so make it while nothing is served (`late_vocabulary`);
compiling releases it and may be done in a thread. Any number of threads may compile at once; a matcher is for one
thread at a time.

Sources: llguidance 1.9 (Earley parser over derivatives of regular expressions, masks by a walk of the token trie).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from relevo.core.errors import InvalidGrammar
from relevo.core.ids import TokenId
from relevo.vocabulary.deep_stack import on_deep_stack

if TYPE_CHECKING:  # both libraries take 0.1 s, which a process pays when it first makes a vocabulary
    from llguidance import LLMatcher, LLTokenizer

    from relevo.vocabulary.model_vocabulary import ModelVocabulary

Tokenize = Callable[[str], Sequence[TokenId]]

MAX_GRAMMAR_BYTES = 1 << 20  # arbitrary: a schema of 20,000 lines; compiling it takes a fifth of a second
# Of productions. Compiling takes time with the square of them: measured, an object of 6,000 optional properties takes
# 4.8 s and is refused in 0.9 s; one of 1,000 takes 0.1 s, a schema of 8,000 lines in 300 objects 0.05 s.
MAX_SYMBOLS = 20_000
# Of rules and terms. The compiler recurses from rule to rule before it counts symbols: measured, a chain of 4,000 rules
# overflows a stack of 8 MiB, which ends the process.
MAX_LINES = 10_000
_MAX_MESSAGE_CHARS = 300  # arbitrary


class GrammarVocabulary:
    """The tokens as grammars see them: what each spells, and those that end an output.

    A special token spells nothing that a grammar could mean by accident: it is let through only where the grammar names
    it. Every id in `eos_token_ids` is let through exactly where the output may end.
    """

    def __init__(
        self,
        tokens: Sequence[bytes],
        special_token_ids: Collection[TokenId],
        eos_token_ids: Sequence[TokenId],
        tokenize: Tokenize = lambda text: (),
        refusal: str = "",
    ) -> None:
        """`tokens`: by id, as many as a row of logits has; one that spells nothing is never let through. `tokenize`: as
        the model saw text; called from other threads. `refusal`: why no output can be held to anything; empty: it can.
        """
        self.size = len(tokens)
        self.eos_token_ids = tuple(token_id for token_id in eos_token_ids if token_id < self.size)
        special = {token_id for token_id in special_token_ids if token_id < self.size}.union(self.eos_token_ids)
        if not refusal and not self.eos_token_ids:
            refusal = "the model has no end-of-sequence token with which such an output could end"
        self.refusal = refusal
        self._silent = frozenset(token_id for token_id, spelled in enumerate(tokens) if not spelled) - special
        self._tokenizer: LLTokenizer | None = None
        if not refusal:
            self._tokenizer = _tokenizer(tokens, sorted(special), self.eos_token_ids, tokenize)

    @classmethod
    def of(cls, vocabulary: ModelVocabulary, vocab_size: int) -> GrammarVocabulary:
        """`vocab_size`: of the model, whose rows of logits may be longer or shorter than the tokenizer's vocabulary."""
        refusal = ""
        if vocabulary.decoder is None:
            refusal = "the model's tokenizer does not say which bytes a token spells"
        tokens = [vocabulary.token_to_bytes(token_id) for token_id in range(vocab_size)]
        return cls(tokens, vocabulary.special_token_ids, vocabulary.end_token_ids, vocabulary.tokenize, refusal)

    def compile(self, grammar: str) -> CompiledGrammar:
        """Bounded by `MAX_SYMBOLS`, `MAX_LINES`, `MAX_GRAMMAR_BYTES` and llguidance's own measures of work.

        Raises InvalidGrammar: it is broken, too long, too complex, or there is nothing that could come first."""
        tokenizer = self._tokenizer
        if tokenizer is None:
            raise InvalidGrammar(f"The output cannot be held to a grammar: {self.refusal}.")
        size = len(grammar.encode(errors="replace"))
        if size > MAX_GRAMMAR_BYTES:
            raise InvalidGrammar(
                f"The grammar has {size:,} bytes and may have {MAX_GRAMMAR_BYTES:,}; use a shorter schema or grammar."
            )
        num_lines = grammar.count("\\n")
        if num_lines > MAX_LINES:
            raise InvalidGrammar(f"The grammar has {num_lines:,} rules and may have {MAX_LINES:,}.")
        return on_deep_stack(lambda: self._compiled(tokenizer, grammar))

    def _compiled(self, tokenizer: LLTokenizer, grammar: str) -> CompiledGrammar:
        from llguidance import LLMatcher, LLParserLimits

        limits = LLParserLimits(max_grammar_size=MAX_SYMBOLS, verbose_errors=False)
        first = LLMatcher(tokenizer, grammar, log_level=0, limits=limits)
        if first.is_error():
            raise InvalidGrammar(f"The grammar cannot be compiled: {_message(first)}")
        start = first.deep_copy()
        start.compute_bitmask()  # a grammar without a beginning says so only here
        if start.is_error():
            raise InvalidGrammar(f"No output can be of this grammar: {_message(start)}")
        return CompiledGrammar(grammar, self, first)

    def spells_nothing(self, token_id: TokenId) -> bool:
        """Such a token is never let through, though it would change nothing."""
        return token_id in self._silent


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class CompiledGrammar:
    text: str
    vocabulary: GrammarVocabulary
    _first: LLMatcher

    def start(self) -> GrammarMatcher:
        """At the beginning of an output."""
        return GrammarMatcher(self._first.deep_copy(), self.vocabulary)


class GrammarMatcher:
    """Where one output is in its grammar. Follows from the output alone: a worker that takes over an output makes a
    matcher of its own and lets it follow all of it."""

    __slots__ = ("_eos_token_ids", "_num_followed", "_vocabulary", "state")

    def __init__(self, state: LLMatcher, vocabulary: GrammarVocabulary) -> None:
        self.state = state  # for filling many masks at once
        self._vocabulary = vocabulary
        self._eos_token_ids = vocabulary.eos_token_ids
        self._num_followed = 0

    def follow(self, output_token_ids: Sequence[TokenId]) -> None:
        """Take in what was added to the output since the last call. See `failure`."""
        for token_id in output_token_ids[self._num_followed :]:
            self._num_followed += 1
            if token_id not in self._eos_token_ids:  # it ends the output and is no part of it
                self.state.consume_token(token_id)

    @property
    def may_end(self) -> bool:
        """The output so far is whole; with end-of-sequence behind it too."""
        return self.state.is_accepting()

    @property
    def failure(self) -> str:
        """Why the output cannot go on, also found while a mask is computed: it is not of the grammar, or following the
        grammar has become too much work. Empty: it can. Never leaves this state."""
        return _message(self.state) if self.state.is_error() else ""

    def forced_token(self) -> TokenId | None:
        """The only token that the mask would have, where that is known without one: the grammar leaves no choice of
        bytes. None: there may be a choice."""
        if not self.state.compute_ff_bytes():  # a tenth of the cost of what follows, and mostly enough
            return None
        forced = self.state.compute_ff_tokens()
        return forced[0] if forced else None

    def lets_through(self, token_id: TokenId) -> bool:
        """The bit that the mask would have for it, where `forced_token` says None; for a thousandth of the cost."""
        if token_id in self._eos_token_ids:
            return self.state.is_accepting()
        return not self._vocabulary.spells_nothing(token_id) and self.state.validate_tokens([token_id]) == 1

    def forced_bytes(self) -> bytes:
        """What the output has to go on with, whatever the model wants; empty where there is a choice."""
        return self.state.compute_ff_bytes()


class _Spellings:
    """What llguidance asks of a tokenizer. Where the grammar leaves no choice of bytes it lets through one token only:
    the first of those that `__call__` makes of them."""

    bos_token_id = None

    def __init__(
        self, tokens: Sequence[bytes], special_token_ids: Sequence[TokenId], eos_token_id: TokenId, tokenize: Tokenize
    ) -> None:
        self.tokens = tokens
        self.special_token_ids = special_token_ids
        self.eos_token_id = eos_token_id
        self.greedy: Tokenize = lambda text: []  # the longest token that fits, again and again
        self._tokenize = tokenize

    def __call__(self, text: bytes) -> Sequence[TokenId]:
        """As the model saw such text, if what is spelled so is the text itself and not one with a space before it."""
        written = text.decode(errors="replace")
        token_ids = self._tokenize(written)
        is_exact = b"".join([self.tokens[token_id] for token_id in token_ids if token_id < len(self.tokens)]) == text
        return token_ids if is_exact else self.greedy(written)


def _tokenizer(
    tokens: Sequence[bytes], special_token_ids: Sequence[TokenId], eos_token_ids: Sequence[TokenId], tokenize: Tokenize
) -> LLTokenizer:
    from llguidance import LLTokenizer, TokenizerWrapper

    spellings = _Spellings(tokens, special_token_ids, eos_token_ids[0], tokenize)
    tokenizer = LLTokenizer(TokenizerWrapper(spellings), eos_token=list(eos_token_ids))
    spellings.greedy = tokenizer.greedy_tokenize
    return tokenizer


def _message(state: LLMatcher) -> str:
    """One line without what is internal."""
    text = state.get_error().partition("\n<state>")[0].removesuffix("<non-verbose/>")
    text = " ".join(text.split())
    return text if len(text) <= _MAX_MESSAGE_CHARS else f"{text[:_MAX_MESSAGE_CHARS]}…"
