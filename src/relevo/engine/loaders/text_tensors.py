"""Which tensors of a folder are the text model's, under the names that they have in a folder of its own.

Owns two rules of what is left out: parts of a wrapper that see pictures, and layers that draft more tokens (MTP). All
else stays, so that a tensor that nothing asks for is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace

from relevo.core.model import ModelConfig
from relevo.engine.loaders.model_files import StoredTensor
from relevo.engine.models.spec import Wrapper

_DRAFTS = "mtp."  # what families with states call the layers that draft, beside the model
_LAYER = re.compile(r"model\.layers\.(\d+)\.")


def text_tensors(config: ModelConfig, wrapper: Wrapper | None, stored: Iterable[StoredTensor]) -> list[StoredTensor]:
    of_text = stored if wrapper is None else _unwrapped(wrapper, stored)
    drafting = range(config.num_layers, config.num_layers + config.num_mtp_layers)
    if config.delta is not None:
        of_text = [tensor for tensor in of_text if not tensor.name.startswith(_DRAFTS)]
    return [tensor for tensor in of_text if _layer(tensor.name) not in drafting]


def _unwrapped(wrapper: Wrapper, stored: Iterable[StoredTensor]) -> Iterator[StoredTensor]:
    for tensor in stored:
        if tensor.name.startswith(wrapper.skipped):
            continue
        prefix = next((each for each in wrapper.prefixes if tensor.name.startswith(each)), None)
        if prefix is None:
            yield tensor
        else:
            yield replace(tensor, name=wrapper.prefixes[prefix] + tensor.name.removeprefix(prefix))


def _layer(name: str) -> int | None:
    found = _LAYER.match(name)
    return int(found[1]) if found else None
