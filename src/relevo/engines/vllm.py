"""vLLM, tokens in and tokens out: `POST /inference/v1/generate`. Source: vLLM 0.32, which was run, and its sources."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from relevo.client.prometheus_text import samples
from relevo.core.baton import SampledToken
from relevo.core.request import FinishReason
from relevo.engines.answers import failure_of, json_object, whole
from relevo.engines.words import EngineAsk, EngineFacts, EngineFailed, EngineLoad, NotFitting, Piece

_ENGINE = "vLLM"

_REASONS = {"stop": FinishReason.STOP, "length": FinishReason.LENGTH, "abort": FinishReason.ABORT}
_PREFIX = "generate-tokens-"  # what it puts before our names
_HOW = "start it with --tokens-only (and --skip-tokenizer-init), or --enable-scale-out"


class VLLMProtocol:
    generate_path = "/inference/v1/generate"
    abort_path = "/inference/v1/abort_requests"
    health_path = "/health"
    fact_paths = ("/version", "/v1/models", "/metrics")
    load_path = "/metrics"
    can_score_prompts = False

    def body(self, ask: EngineAsk, *, stream: bool) -> dict[str, Any]:
        s = ask.sampling
        sampling: dict[str, Any] = {
            "max_tokens": ask.max_tokens,
            "min_tokens": ask.min_tokens,
            "temperature": s.temperature,
            "top_p": s.top_p,
            "top_k": s.top_k,
            "min_p": s.min_p,
            "frequency_penalty": s.frequency_penalty,
            "presence_penalty": s.presence_penalty,
            "repetition_penalty": s.repetition_penalty,
            "seed": ask.seed,
            "ignore_eos": True,  # ours are among the stop tokens
            "stop_token_ids": list(ask.stop_token_ids),
            "detokenize": False,
        }
        if s.num_logprobs is not None:
            sampling["logprobs"] = s.num_logprobs
        if s.logit_bias:
            sampling["logit_bias"] = {str(token): bias for token, bias in s.logit_bias.items()}
        body: dict[str, Any] = {
            "request_id": ask.name,
            "model": ask.model,
            "token_ids": list(ask.token_ids),
            "sampling_params": sampling,
            "stream": stream,
        }
        if stream:
            body["stream_options"] = {"include_usage": True}
        if ask.salt:
            body["cache_salt"] = ask.salt
        return body | dict(ask.fields)

    def piece(self, event: bytes, ask: EngineAsk, num_before: int) -> Piece | None:
        if event.strip() == b"[DONE]":
            return None
        told = json_object(event, _ENGINE)
        if "error" in told:
            raise failure_of(told, 500, _ENGINE)
        cached = _cached(told)
        choices = told.get("choices") or []
        if not choices:
            return Piece(num_cached_tokens=cached)
        choice = choices[0]
        try:
            ids = choice.get("token_ids") or []
            tokens = _with_logprobs(ids, choice.get("logprobs")) if ask.sampling.num_logprobs is not None else None
            reason = choice.get("finish_reason")
            return Piece(
                tokens if tokens is not None else tuple(SampledToken(int(i)) for i in ids),
                _REASONS.get(reason, FinishReason.ERROR) if reason else None,
                cached,
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise EngineFailed(f"vLLM said what is no output: {error!r}") from error

    def abort_bodies(self, names: Sequence[str]) -> list[dict[str, Any]]:
        return [{"request_ids": [name for each in names for name in (each, _PREFIX + each)]}]

    def facts(self, answers: Mapping[str, tuple[int, bytes]]) -> EngineFacts:
        version, models, metrics = (answers[path] for path in self.fact_paths)
        if version[0] != 200 or models[0] != 200:
            status = version[0] if version[0] != 200 else models[0]
            raise NotFitting(
                f"it answers HTTP {status} to {'/version' if version[0] != 200 else '/v1/models'}: {_key(status)}"
            )
        cards = [card for card in json_object(models[1], _ENGINE).get("data", []) if isinstance(card, dict)]
        if not cards:
            raise NotFitting("it serves no model; wait until it has loaded one")
        started_at, cache = "", {}
        for sample in samples(metrics[1].decode(errors="replace")) if metrics[0] == 200 else ():
            if sample.name == "process_start_time_seconds":
                started_at = repr(sample.value)
            elif sample.name == "vllm:cache_config_info":
                cache = sample.labels
        return EngineFacts(
            version=str(json_object(version[1], _ENGINE).get("version", "")),
            model=str(cards[0].get("root") or cards[0].get("id", "")),
            served_names=tuple(str(card.get("id")) for card in cards),
            max_model_len=whole(cards[0].get("max_model_len")),
            block_size=whole(cache.get("block_size")),
            num_blocks=whole(cache.get("num_gpu_blocks")) or whole(cache.get("num_cpu_blocks")),
            kv_dtype=str(cache.get("cache_dtype", "")),
            started_at=started_at,
        )

    def load(self, body: bytes) -> EngineLoad:
        sums: dict[str, float] = {}
        started_at = ""
        for sample in samples(body.decode(errors="replace")):
            if sample.name in _LOAD:
                sums[sample.name] = sums.get(sample.name, 0.0) + sample.value
            elif sample.name == "process_start_time_seconds":
                started_at = repr(sample.value)
        values = {name: sums.get(metric, 0.0) for metric, name in _LOAD.items()}
        return EngineLoad(
            started_at=started_at,
            cache_use=values.pop("cache_use"),
            **{name: int(value) for name, value in values.items()},
        )

    def failure(self, status: int, body: bytes) -> EngineFailed:
        if status in (401, 403):
            return EngineFailed(f"vLLM answered HTTP {status}: {_key(status)}", status=status)
        if status == 404:
            return EngineFailed(f"vLLM has no {self.generate_path}; {_HOW}", status=status)
        try:
            return failure_of(json_object(body, _ENGINE), status, _ENGINE)
        except EngineFailed:
            return EngineFailed(f"vLLM answered HTTP {status}", status=status)


_LOAD = {
    "vllm:num_requests_running": "num_running",
    "vllm:num_requests_waiting": "num_waiting",
    "vllm:kv_cache_usage_perc": "cache_use",
    "vllm:prompt_tokens_total": "num_prompt_tokens",
    "vllm:generation_tokens_total": "num_generation_tokens",
    "vllm:num_preemptions_total": "num_preemptions",
    "vllm:prefix_cache_queries_total": "num_prefix_queries",
    "vllm:prefix_cache_hits_total": "num_prefix_hits",
}


def _with_logprobs(ids: Sequence[int], told: Any) -> tuple[SampledToken, ...]:
    entries = (told or {}).get("content") or []
    if len(entries) != len(ids):
        raise ValueError(f"{len(ids)} tokens and {len(entries)} log-probabilities")
    return tuple(
        SampledToken(int(token), float(entry["logprob"]), _best_first(entry.get("top_logprobs") or []))
        for token, entry in zip(ids, entries, strict=True)
    )


def _best_first(entries: Sequence[Mapping[str, Any]]) -> tuple[tuple[int, float], ...]:
    """It puts the sampled token first, wherever that ranks."""
    ranked = sorted(entries, key=lambda entry: (entry.get("rank") or 0, -entry["logprob"]))
    return tuple(dict.fromkeys((int(entry["token_id"]), float(entry["logprob"])) for entry in ranked))


def _cached(told: Mapping[str, Any]) -> int | None:
    details = (told.get("usage") or {}).get("prompt_tokens_details") or {}
    cached = details.get("cached_tokens")
    return cached if isinstance(cached, int) else None


def _key(status: int) -> str:
    if status in (401, 403):
        return f"name the environment variable with its key as api_key_env=NAME, and {_HOW}"
    return "is this a vLLM server?"
