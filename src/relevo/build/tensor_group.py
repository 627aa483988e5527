"""What `--tensor-parallel-size`, `--enable-expert-parallel` and `--collectives` ask for, and when it cannot be had."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from relevo.build.configs import WorkerConfig
from relevo.core.errors import SettingsError, UnsupportedModel
from relevo.core.model import ModelConfig
from relevo.engine.models.slice_places import check_blocks
from relevo.engine.models.slices import share_of
from relevo.settings import Settings


def group_size(
    settings: Settings, model: ModelConfig, backend: str, device: str, block_formats: Mapping[str, str]
) -> int | None:
    """None: the model is not cut, since that was not asked for, or since its sizes do not allow it and one rank has all
    of it. `block_formats`: of tensors that the backend can multiply as they are stored, by name. Raises SettingsError
    if so many ranks cannot share the layers of this model here."""
    asked = settings.tensor_parallel_size
    if asked is None:
        if settings.enable_expert_parallel:
            raise SettingsError(
                "--enable-expert-parallel places experts on the ranks of a tensor group; say how many there are with "
                "--tensor-parallel-size, or leave it out"
            )
        return None
    flag = f"--tensor-parallel-size {asked}"
    if model.architecture == "fake":
        raise SettingsError(
            f"{flag} shares out the layers of a model, and `fake` has none; name a model, or leave it out"
        )
    if device != "cpu":
        raise SettingsError(
            f"{flag} needs KV that several processes map, and --device {device} keeps it in device memory; use "
            "--device cpu, or leave it out"
        )
    if backend != "native":
        raise SettingsError(
            f"{flag} needs --backend native, not {backend}, whose sums depend on how many threads a rank has; change "
            "the backend, or leave it out"
        )
    try:
        share = share_of(model, 0, asked, whole_experts=settings.enable_expert_parallel)
        if settings.dtype == "auto" and settings.quantization is None:
            check_blocks(model, share, block_formats)
    except UnsupportedModel as error:
        raise SettingsError(f"{flag}: {error}") from error
    return asked if share.num_slices > 1 else None


def collectives_of(settings: Settings, group_size: int | None, num_cuda_devices: int) -> str:
    """`group_size`: of a stage. Raises SettingsError if the ranks cannot exchange arrays so, or if there are none."""
    collectives, num_ranks = settings.collectives, settings.pipeline_parallel_size * (group_size or 1)
    if collectives != "shm" and num_ranks == 1:
        raise SettingsError(
            f"--collectives {collectives} is how ranks of a worker exchange arrays, and here a worker has one; ask for "
            "more with --tensor-parallel-size or --pipeline-parallel-size, or leave it out"
        )
    if collectives == "nccl" and num_cuda_devices < num_ranks:
        raise SettingsError(
            f"--collectives nccl needs a CUDA device for each of {num_ranks} ranks, and torch finds "
            f"{num_cuda_devices or 'none'} here; use gloo, or leave it out"
        )
    return collectives


def whole_everywhere(model: ModelConfig) -> int:
    """Weights that every rank of a tensor group has, at least: the embedding and the output layer."""
    return model.vocab_size * model.hidden_size * (1 if model.tie_word_embeddings else 2)


def weights_of_an_expert(model: ModelConfig) -> int:
    """In all layers that have experts; 0: none has."""
    experts = model.experts
    return 3 * len(experts.layers) * model.hidden_size * experts.intermediate_size if experts is not None else 0


def group_notes(workers: Sequence[WorkerConfig]) -> tuple[str, ...]:
    """What is said of ranks that have no core of their own."""
    size, fewest = workers[0].group_size, min(len(each.cores) for each in workers)
    if size <= fewest:
        return ()
    return (
        f"warning: {size} ranks of a worker compute at the same time and share {fewest} "
        f"core{'s' if fewest > 1 else ''}, where every sum waits for the slowest; give workers more cores, or lower "
        "--tensor-parallel-size",
    )
