"""SGLang, tokens in and tokens out: `POST /generate`. Source: the source of SGLang 0.5.23. It was never run against a
real SGLang, which needs a GPU: only against a server that speaks its protocol (tests/fake_engines)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from relevo.core.baton import SampledToken
from relevo.core.request import FinishReason
from relevo.engines.answers import failure_of, json_object, whole
from relevo.engines.words import EngineAsk, EngineFacts, EngineFailed, EngineLoad, NotFitting, Piece

_ENGINE = "SGLang"

_REASONS = {"stop": FinishReason.STOP, "length": FinishReason.LENGTH, "abort": FinishReason.ABORT}
_ROLES = {"prefill": "prefill", "decode": "decode"}


class SGLangProtocol:
    generate_path = "/generate"
    abort_path = "/abort_request"
    health_path = "/health"
    fact_paths = ("/server_info",)
    load_path = "/v1/loads"
    can_score_prompts = False

    def body(self, ask: EngineAsk, *, stream: bool) -> dict[str, Any]:
        s = ask.sampling
        sampling: dict[str, Any] = {
            "max_new_tokens": ask.max_tokens,
            "min_new_tokens": ask.min_tokens,
            "temperature": s.temperature,
            "top_p": s.top_p,
            "top_k": s.top_k or -1,
            "min_p": s.min_p,
            "frequency_penalty": s.frequency_penalty,
            "presence_penalty": s.presence_penalty,
            "repetition_penalty": s.repetition_penalty,
            "sampling_seed": ask.seed,
            "ignore_eos": True,  # ours are among the stop tokens
            "stop_token_ids": list(ask.stop_token_ids),
            "skip_special_tokens": False,
        }
        if s.logit_bias:
            sampling["logit_bias"] = {str(token): bias for token, bias in s.logit_bias.items()}
        body: dict[str, Any] = {
            "rid": ask.name,
            "input_ids": list(ask.token_ids),
            "sampling_params": sampling,
            "stream": stream,
        }
        if s.num_logprobs is not None:
            body |= {"return_logprob": True, "top_logprobs_num": s.num_logprobs, "logprob_start_len": -1}
        if ask.salt:
            body["cache_salt"] = ask.salt
        return body | dict(ask.fields)

    def piece(self, event: bytes, ask: EngineAsk, num_before: int) -> Piece | None:
        """Its streams tell all output so far, or what is new, as it was started: `completion_tokens` tells which."""
        if event.strip() == b"[DONE]":
            return None
        told = json_object(event, _ENGINE)
        if "error" in told:
            raise failure_of(told, 500, _ENGINE)
        meta = told.get("meta_info") or {}
        try:
            ids = [int(token) for token in told.get("output_ids") or []]
            num_so_far = int(meta.get("completion_tokens", num_before + len(ids)))
            is_all = len(ids) == num_so_far
            new = ids[num_before:] if is_all else ids
            reason = meta.get("finish_reason")
            kind = reason.get("type") if isinstance(reason, Mapping) else reason
            if kind == "abort" and isinstance(reason, Mapping):
                raise EngineFailed(f"SGLang gave it up: {str(reason.get('message', ''))[:300]}", status=_status(reason))
            cached = meta.get("cached_tokens")
            return Piece(
                _with_logprobs(new, meta, num_before)
                if ask.sampling.num_logprobs is not None
                else tuple(map(_token, new)),
                _REASONS.get(str(kind), FinishReason.ERROR) if kind else None,
                cached if isinstance(cached, int) else None,
            )
        except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
            raise EngineFailed(f"SGLang said what is no output: {error!r}") from error

    def abort_bodies(self, names: Sequence[str]) -> list[dict[str, Any]]:
        return [{"rid": name, "abort_all": False} for name in names]

    def facts(self, answers: Mapping[str, tuple[int, bytes]]) -> EngineFacts:
        status, body = answers["/server_info"]
        if status != 200:
            raise NotFitting(f"it answers HTTP {status} to /server_info: is this an SGLang server?")
        told = json_object(body, _ENGINE)
        return EngineFacts(
            version=str(told.get("version", "")),
            model=str(told.get("model_path", "")),
            served_names=(str(told["served_model_name"]),) if told.get("served_model_name") else (),
            max_model_len=whole(told.get("context_length")),
            block_size=whole(told.get("page_size")),
            num_blocks=whole(told.get("max_total_num_tokens")) // max(1, whole(told.get("page_size"))),
            kv_dtype=str(told.get("kv_cache_dtype", "")),
            tensor_parallel_size=whole(told.get("tp_size")),
            role=_ROLES.get(str(told.get("disaggregation_mode", "")), ""),
            started_at=str(told.get("startup_time") or told.get("pid") or ""),
        )

    def load(self, body: bytes) -> EngineLoad:
        loads = json_object(body, _ENGINE).get("loads") or []
        ranks = [each for each in loads if isinstance(each, dict)]
        used = [float(each.get("token_usage", 0.0)) for each in ranks]
        return EngineLoad(
            num_running=sum(whole(each.get("num_running_reqs")) for each in ranks),
            num_waiting=sum(whole(each.get("num_waiting_reqs")) for each in ranks),
            cache_use=max(used, default=0.0),
        )

    def failure(self, status: int, body: bytes) -> EngineFailed:
        if status in (401, 403):
            how = "name the environment variable with its key as api_key_env=NAME"
            return EngineFailed(f"SGLang answered HTTP {status}: {how}", status=status)
        try:
            return failure_of(json_object(body, _ENGINE), status, _ENGINE)
        except EngineFailed:
            return EngineFailed(f"SGLang answered HTTP {status}", status=status)


def _token(token: int) -> SampledToken:
    return SampledToken(token)


def _with_logprobs(new: Sequence[int], meta: Mapping[str, Any], num_before: int) -> tuple[SampledToken, ...]:
    """Lists of (logprob, token, text), all so far or of the new ones."""
    told, top = meta["output_token_logprobs"], meta.get("output_top_logprobs") or []
    skip = num_before if len(told) >= num_before + len(new) else 0
    tokens = []
    for index, token in enumerate(new, start=skip):
        best = tuple((int(each[1]), float(each[0])) for each in top[index]) if index < len(top) and top[index] else ()
        tokens.append(SampledToken(token, float(told[index][0]), best))
    return tuple(tokens)


def _status(reason: Mapping[str, Any]) -> int:
    status = reason.get("status_code")
    return status if isinstance(status, int) else 500
