"""What is asked of the `fake` engine, its script read and tried: every worker, also one that is started again later,
says what the file held at the start."""

from __future__ import annotations

from relevo.build.documents import read_document
from relevo.build.models_file import AskedModel
from relevo.build.resolve import ModelAsk
from relevo.core.errors import SettingsError
from relevo.engine.fake_model import FAKE_MODEL, SCRIPTED_MODEL
from relevo.engine.fake_script import ScriptFault, packed, script_of

_SCRIPTED_KV_TOKENS = 8 * SCRIPTED_MODEL.max_position  # of a worker, where nothing is asked for; arbitrary, 32 MiB


def fake_ask(asked: AskedModel) -> ModelAsk:
    """Raises SettingsError."""
    settings, script = asked.settings, ""
    if settings.script is not None:
        script = _packed(settings.script)
        if settings.num_kv_blocks is None and settings.kv_cache_memory_bytes is None:
            num_kv_blocks = _SCRIPTED_KV_TOKENS // settings.block_size
            settings = settings.model_copy(update={"num_kv_blocks": num_kv_blocks})
    return ModelAsk(
        settings=settings,
        model=SCRIPTED_MODEL if script else FAKE_MODEL,
        model_hash="fake",
        section=asked.section,
        script=script,
        price=asked.price,
    )


def _packed(path: str) -> str:
    document = read_document(path, "--script")
    try:
        return packed(script_of(document))
    except ScriptFault as fault:
        raise SettingsError(f"--script {path}: {fault}") from fault
