"""Gathers everything the gateway needs for text from a Hugging Face folder or from GGUF metadata.

Owns which file or key wins when several say the same thing. It runs no tokenizer and renders no template.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from relevo.core.errors import ModelFileError
from relevo.core.model import TokenizerFiles
from relevo.engine.loaders.gguf_metadata import read_metadata
from relevo.engine.loaders.gguf_tokenizer import adds_bos, control_tokens, token_list, tokenizer_from_gguf
from relevo.engine.loaders.locate import PACKAGED_MODEL, locate_model

_NO_LIMIT_TOKENS = 10**9  # transformers writes 10^30 for "no limit"
_GGML = "tokenizer.ggml."
_SAMPLING = "general.sampling."
_SAMPLING_KEYS = {  # GGUF's word -> generation_config.json's
    "temp": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "penalty_repeat": "repetition_penalty",
    "xtc_probability": "xtc_probability",
    "mirostat": "mirostat",
}
# Measured: of 30 answers to "What is the capital of France?" 30 are right greedily, 20 at temperature 0.2 and top_p 0.9
# (the example of the makers' model card), 12 at temperature 1. Without do_sample transformers draws greedily, too.
_PACKAGED_GENERATION = {"temperature": 0.0}
# Control tokens that end a turn. A template that writes one after each message taught the model to stop there, also
# where the file names only the end of the document.
_TURN_ENDS = ("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end|>", "<end_of_turn>", "<|end_of_text|>")


def load_tokenizer_files(
    model: str | None = None, *, revision: str | None = None, download_dir: str | None = None
) -> TokenizerFiles:
    """Of a model named as for `resolve.load_model_files`. Raises ModelFileError, UnsupportedModel, HubUnavailable."""
    path, name = locate_model(model, revision=revision, download_dir=download_dir)
    if path.is_dir():
        return tokenizer_files_from_folder(path)
    files = tokenizer_files_from_gguf_file(path)
    if name == PACKAGED_MODEL and not files.generation_config:  # converted before such keys existed
        origin = "what was measured for this small model"
        return replace(files, generation_config=_PACKAGED_GENERATION, generation_origin=origin)
    return files


def read_generation_config(folder: Path) -> dict[str, Any]:
    """Of a folder that an operator names. Raises ModelFileError if it has none, or a broken one."""
    path = folder / "generation_config.json"
    if not path.is_file():
        raise ModelFileError(
            f"there is no {path}; --generation-config takes auto, vllm, or a folder that has that file"
        )
    return _read_object(path)


def tokenizer_files_from_folder(path: Path | str) -> TokenizerFiles:
    """Read tokenizer.json and its companions. Raises ModelFileError if the folder has none, or a file is broken."""
    folder = Path(path)
    tokenizer_json = _read_text(folder / "tokenizer.json")
    if tokenizer_json is None:
        raise ModelFileError(
            f"{folder} has no tokenizer.json; save one with transformers' AutoTokenizer.from_pretrained(...)"
            ".save_pretrained(...), or serve a GGUF file of the model"
        )
    _parse_object(tokenizer_json, folder / "tokenizer.json")
    special = _read_object(folder / "special_tokens_map.json")
    config = _read_object(folder / "tokenizer_config.json")
    generation = _read_object(folder / "generation_config.json")
    model = _read_object(folder / "config.json")
    eos_token = _token_text(config, special, "eos_token")
    stated_eos = generation.get("eos_token_id", model.get("eos_token_id"))
    return TokenizerFiles(
        tokenizer_json=tokenizer_json,
        chat_template=_chat_template(folder, config),
        bos_token=_token_text(config, special, "bos_token"),
        eos_token=eos_token,
        unk_token=_token_text(config, special, "unk_token"),
        pad_token=_token_text(config, special, "pad_token"),
        additional_special_tokens=_additional_tokens(config, special),
        add_bos_token=config.get("add_bos_token"),
        eos_token_ids=_ids(stated_eos) or _id_of(tokenizer_json, eos_token),
        generation_config=generation,
        model_max_length=_limit(config.get("model_max_length")),
    )


def tokenizer_files_from_gguf(fields: Mapping[str, Any]) -> TokenizerFiles:
    """The same from decoded GGUF key/values (`gguf_metadata.read_metadata`).

    Raises UnsupportedModel or ModelFileError, see `gguf_tokenizer.tokenizer_from_gguf`.
    """
    tokens, template = token_list(fields), fields.get("tokenizer.chat_template")
    document, tables = tokenizer_from_gguf(fields)

    def named(key: str) -> str | None:
        token_id = fields.get(_GGML + key)
        return tokens[token_id] if isinstance(token_id, int) and 0 <= token_id < len(tokens) else None

    return TokenizerFiles(
        tokenizer_json=document,
        bpe=tables,
        chat_template=template,
        bos_token=named("bos_token_id"),
        eos_token=named("eos_token_id"),
        unk_token=named("unknown_token_id"),
        pad_token=named("padding_token_id"),
        add_bos_token=adds_bos(fields),
        eos_token_ids=_gguf_eos_ids(fields, tokens, template),
        generation_config={
            name: fields[_SAMPLING + key] for key, name in _SAMPLING_KEYS.items() if _SAMPLING + key in fields
        },
        generation_origin=f"the file's keys {_SAMPLING}*",
        model_max_length=_limit(fields.get(f"{fields.get('general.architecture')}.context_length")),
    )


def tokenizer_files_from_gguf_file(path: Path | str) -> TokenizerFiles:
    """`tokenizer_files_from_gguf` of a file on disk."""
    return tokenizer_files_from_gguf(read_metadata(path))


def _gguf_eos_ids(fields: Mapping[str, Any], tokens: list[str], template: str | None) -> tuple[int, ...]:
    stated = [fields.get(_GGML + key) for key in ("eos_token_id", "eot_token_id", "eom_token_id")]
    controls = control_tokens(fields)
    written = {end for end in _TURN_ENDS if template and end in template and end in controls}
    turn_ends = [token_id for token_id, token in enumerate(tokens) if token in written]
    return _ids([token_id for token_id in stated if token_id is not None] + turn_ends)


def _read_text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise ModelFileError(f"cannot read {path}: {error}") from error


def _read_object(path: Path) -> dict[str, Any]:
    """A JSON object; empty if the file is absent."""
    text = _read_text(path)
    return {} if text is None else _parse_object(text, path)


def _parse_object(text: str, path: Path) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise ModelFileError(f"{path} is not valid JSON ({error}); download it again") from error
    if not isinstance(value, dict):
        raise ModelFileError(f"{path} holds no JSON object; download it again")
    return value


def _chat_template(folder: Path, config: Mapping[str, Any]) -> str | None:
    """chat_template.jinja, else tokenizer_config.json's; of several named ones, `default`."""
    text = _read_text(folder / "chat_template.jinja")
    if text is not None:
        return text
    stated = config.get("chat_template")
    if isinstance(stated, list):
        stated = {entry["name"]: entry["template"] for entry in stated}
    if isinstance(stated, dict):
        stated = stated.get("default")
    return stated


def _token_text(config: Mapping[str, Any], special: Mapping[str, Any], name: str) -> str | None:
    value = config.get(name) or special.get(name)
    return value["content"] if isinstance(value, dict) else value


def _additional_tokens(config: Mapping[str, Any], special: Mapping[str, Any]) -> tuple[str, ...]:
    stated = config.get("additional_special_tokens") or special.get("additional_special_tokens") or []
    return tuple(token["content"] if isinstance(token, dict) else token for token in stated)


def _ids(value: int | Iterable[int] | None) -> tuple[int, ...]:
    """Distinct ids in the order given."""
    if value is None:
        return ()
    return (value,) if isinstance(value, int) else tuple(dict.fromkeys(value))


def _id_of(tokenizer_json: str, token: str | None) -> tuple[int, ...]:
    added = json.loads(tokenizer_json).get("added_tokens", [])
    return tuple(entry["id"] for entry in added if entry["content"] == token)


def _limit(value: float | None) -> int | None:
    return int(value) if value is not None and value < _NO_LIMIT_TOKENS else None
