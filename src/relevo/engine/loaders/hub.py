"""A model id on the Hugging Face hub: from the local cache, or downloaded into it.

Owns what is fetched (weights as safetensors, JSON, templates) and what an operator is told when it cannot be. The cache
and its place (HF_HOME, HF_HUB_OFFLINE) are huggingface_hub's own, and so are the bars of a download, at a terminal.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from relevo.core.errors import HubUnavailable, HubUnreachable, ModelFileError
from relevo.telemetry.progress import is_shown

_PATTERNS = ["*.safetensors", "*.safetensors.index.json", "*.json", "*.jinja", "tokenizer.model"]
_TRUE = ("1", "ON", "YES", "TRUE")


def hub_folder(
    model_id: str, revision: str | None, download_dir: str | None, patterns: Sequence[str] = _PATTERNS
) -> Path:
    """The folder of a snapshot of the files that match `patterns`.

    Raises HubUnavailable, ModelFileError (no such model or revision)."""
    try:
        from huggingface_hub import constants, snapshot_download
        from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError
        from huggingface_hub.utils.tqdm import disable_progress_bars, enable_progress_bars
    except ImportError as error:
        raise HubUnavailable(
            f"{model_id} is a hub id and huggingface_hub is not installed; pip install huggingface-hub, "
            "or give the path of a model"
        ) from error
    cache_dir = download_dir or constants.HF_HUB_CACHE
    if constants.HF_HUB_DISABLE_PROGRESS_BARS is None:  # the operator said nothing of them
        (enable_progress_bars if is_shown() else disable_progress_bars)()
    offline = os.environ.get("HF_HUB_OFFLINE", "").upper() in _TRUE
    try:
        folder = snapshot_download(
            model_id, revision=revision, cache_dir=cache_dir, allow_patterns=list(patterns), local_files_only=offline
        )
    except GatedRepoError as error:
        raise ModelFileError(f"{model_id} asks for a licence; accept it on the hub and set HF_TOKEN") from error
    except RevisionNotFoundError as error:
        raise ModelFileError(f"{model_id} has no revision {revision!r}; check its name") from error
    except RepositoryNotFoundError as error:
        raise ModelFileError(
            f"the hub has no model {model_id}, or it is private; check the id or set HF_TOKEN"
        ) from error
    except (OSError, ValueError) as error:  # what huggingface_hub raises for networks, offline mode and cache misses
        state = "HF_HUB_OFFLINE is set" if offline else "the hub cannot be reached"
        raise (HubUnavailable if offline else HubUnreachable)(
            f"{model_id} is not complete in the cache {cache_dir} and {state}; copy the model there "
            f"(hf download {model_id}), or give the path of a folder or GGUF file"
        ) from error
    return Path(folder)
