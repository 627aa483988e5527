"""Gathers everything the gateway needs for text from a Hugging Face folder or from GGUF metadata.

Owns which file or key wins when several say the same thing. It runs no tokenizer and renders no template.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from relevo.core.errors import ModelFileError
from relevo.core.model import TokenizerFiles
from relevo.engine.loaders.gguf_metadata import read_metadata
from relevo.engine.loaders.gguf_tokenizer import added_tokens, adds_bos, token_list, tokenizer_from_gguf
from relevo.engine.loaders.locate import locate_model
from relevo.engine.loaders.packaged_model import PACKAGED_MODEL
from relevo.engine.loaders.template_files import folder_templates, gguf_templates
from relevo.engine.loaders.text_files import parse_object, read_object, read_text

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
# Added tokens that end a turn where a template writes them.
_TURN_ENDS = frozenset(
    (
        *("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|eot|>", "<|eom|>", "<|end|>", "<end_of_turn>"),
        *("<|end_of_turn|>", "<|end_of_text|>", "<|endoftext|>", "<|return|>", "<turn|>"),
    )
)


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
    return read_object(path)


def tokenizer_files_from_folder(path: Path | str) -> TokenizerFiles:
    """Read tokenizer.json and its companions. Raises ModelFileError if the folder has none, or a file is broken."""
    folder = Path(path)
    tokenizer_json = read_text(folder / "tokenizer.json")
    if tokenizer_json is None:
        raise ModelFileError(
            f"{folder} has no tokenizer.json; save one with transformers' AutoTokenizer.from_pretrained(...)"
            ".save_pretrained(...), or serve a GGUF file of the model"
        )
    document = parse_object(tokenizer_json, folder / "tokenizer.json")
    added = _added_tokens(document, folder / "tokenizer.json")
    special = read_object(folder / "special_tokens_map.json")
    config = read_object(folder / "tokenizer_config.json")
    generation = read_object(folder / "generation_config.json")
    model = read_object(folder / "config.json")
    eos_token = _token_text(config, special, "eos_token")
    template, named = folder_templates(folder, config)
    return TokenizerFiles(
        tokenizer_json=tokenizer_json,
        chat_template=template,
        named_templates=named,
        bos_token=_token_text(config, special, "bos_token"),
        eos_token=eos_token,
        unk_token=_token_text(config, special, "unk_token"),
        pad_token=_token_text(config, special, "pad_token"),
        additional_special_tokens=_additional_tokens(config, special),
        tokenizer_class=_class_name(config.get("tokenizer_class")),
        add_bos_token=config.get("add_bos_token"),
        stated_eos_token_ids=_ids(
            _stated_ends(generation, folder / "generation_config.json"),
            _stated_ends(model, folder / "config.json"),
            _stated_ends(_text_config(model), folder / "config.json"),
            _id_of(eos_token, added, document),
        ),
        turn_end_ids={text: token_id for text, token_id in added.items() if text in _TURN_ENDS},
        generation_config=generation,
    )


def tokenizer_files_from_gguf(fields: Mapping[str, Any]) -> TokenizerFiles:
    """The same from decoded GGUF key/values (`gguf_metadata.read_metadata`).

    Raises UnsupportedModel or ModelFileError, see `gguf_tokenizer.tokenizer_from_gguf`.
    """
    tokens = token_list(fields)
    template, named_templates = gguf_templates(fields)
    document, tables = tokenizer_from_gguf(fields)

    def named(key: str) -> str | None:
        token_id = fields.get(_GGML + key)
        return tokens[token_id] if isinstance(token_id, int) and 0 <= token_id < len(tokens) else None

    return TokenizerFiles(
        tokenizer_json=document,
        bpe=tables,
        chat_template=template,
        named_templates=named_templates,
        bos_token=named("bos_token_id"),
        eos_token=named("eos_token_id"),
        unk_token=named("unknown_token_id"),
        pad_token=named("padding_token_id"),
        add_bos_token=adds_bos(fields),
        stated_eos_token_ids=_ids(
            token_id
            for token_id in (fields.get(_GGML + key) for key in ("eos_token_id", "eot_token_id", "eom_token_id"))
            if isinstance(token_id, int) and 0 <= token_id < len(tokens)
        ),
        turn_end_ids={text: token_id for token_id, text in added_tokens(fields) if text in _TURN_ENDS},
        generation_config={
            name: fields[_SAMPLING + key] for key, name in _SAMPLING_KEYS.items() if _SAMPLING + key in fields
        },
        generation_origin=f"the file's keys {_SAMPLING}*",
    )


def tokenizer_files_from_gguf_file(path: Path | str) -> TokenizerFiles:
    """`tokenizer_files_from_gguf` of a file on disk."""
    return tokenizer_files_from_gguf(read_metadata(path))


def _added_tokens(document: Mapping[str, Any], path: Path) -> dict[str, int]:
    """Ids by text. Raises ModelFileError."""
    entries = document.get("added_tokens") or []
    try:
        return {entry["content"]: int(entry["id"]) for entry in entries}
    except (TypeError, KeyError, ValueError) as error:
        raise ModelFileError(f"{path}: added_tokens must be a list of tokens, each with id and content") from error


def _token_text(config: Mapping[str, Any], special: Mapping[str, Any], name: str) -> str | None:
    value = config.get(name) or special.get(name)
    return _text_of_token(value, name) if value else None


def _additional_tokens(config: Mapping[str, Any], special: Mapping[str, Any]) -> tuple[str, ...]:
    name = "additional_special_tokens"
    stated = config.get(name) or special.get(name) or []
    return tuple(_text_of_token(token, name) for token in (stated if isinstance(stated, list) else [stated]))


def _text_of_token(value: Any, name: str) -> str:
    """A token is written as its text, or as an object that has it. Raises ModelFileError."""
    text = value.get("content") if isinstance(value, dict) else value
    if not isinstance(text, str):
        raise ModelFileError(
            f"tokenizer_config.json or special_tokens_map.json: {name} is {value!r} and must be a token's text; mend it"
        )
    return text


def _class_name(value: Any) -> str | None:
    """What is no text is nothing that a client could load by, and nothing that is needed here."""
    return value if isinstance(value, str) else None


def _stated_ends(config: Mapping[str, Any], path: Path) -> Sequence[int]:
    """`eos_token_id`: a number, a list of numbers, or not there. Raises ModelFileError for anything else."""
    value = config.get("eos_token_id")
    ids = [] if value is None else value if isinstance(value, list) else [value]
    for token_id in ids:
        if not isinstance(token_id, int) or isinstance(token_id, bool) or token_id < 0:
            raise ModelFileError(f"{path}: eos_token_id is {value!r} and must be a token id or a list of them; mend it")
    return ids


def _text_config(model: Mapping[str, Any]) -> Mapping[str, Any]:
    nested = model.get("text_config")
    return nested if isinstance(nested, dict) else {}


def _ids(*stated: Iterable[int]) -> tuple[int, ...]:
    """Distinct ids in the order given."""
    return tuple(dict.fromkeys(token_id for ids in stated for token_id in ids))


def _id_of(token: str | None, added: Mapping[str, int], document: Mapping[str, Any]) -> Sequence[int]:
    """Of a token of a tokenizer.json: it need not be an added one."""
    if token is None:
        return []
    if token in added:
        return [added[token]]
    vocabulary = (document.get("model") or {}).get("vocab")
    return [vocabulary[token]] if isinstance(vocabulary, dict) and token in vocabulary else []
