"""A file of models: what its sections mean, what is refused and in which words, and how models share a machine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from relevo.build.documents import read_document
from relevo.build.hardware import Hardware
from relevo.build.ledger import with_metering
from relevo.build.models_file import AskedModel, asked_models
from relevo.build.plan import ServePlan, resolve
from relevo.build.resolve import GATEWAY_BYTES, SUPERVISOR_BYTES, WORKER_BYTES, ModelAsk, weights_bytes
from relevo.build.setting_scopes import OF_ONE_MODEL, OF_THE_SERVER
from relevo.core.errors import SettingsError
from relevo.engine.fake_model import FAKE_MODEL
from relevo.settings import Settings

GIB = 2**30
TWO = """
[small]
model = "one.gguf"
topology = "1p1d"
cores = [0, 1]
[big]
model = "two.gguf"
served-model-name = ["big", "alias"]
"""


def asked(folder: Path, text: str, **settings: Any) -> list[AskedModel]:
    path = folder / "models.toml"
    path.write_text(text)
    return asked_models(Settings(models=str(path), **settings))


def plan(
    folder: Path, text: str, *, num_cores: int = 8, free_bytes: int = 64 * GIB, file_bytes: int = 0, **settings: Any
) -> ServePlan:
    """With the fake architecture under every name, so that no file is needed."""
    path = folder / "models.toml"
    path.write_text(text)
    server = Settings(models=str(path), **settings)
    asks = [
        ModelAsk(
            settings=one.settings, model=FAKE_MODEL, model_hash="h", section=one.section, price=one.price,
            weights_bytes=file_bytes, num_parameters=file_bytes,
        )
        for one in asked_models(server)
    ]  # fmt: skip
    hardware = Hardware(cores=tuple(range(num_cores)), available_memory_bytes=free_bytes, has_bf16=False)
    return resolve(server, asks, hardware)


def test_a_server_without_a_file_has_the_model_of_the_command_line() -> None:
    settings = Settings(model="x.gguf", cores=("0",))
    assert asked_models(settings) == [AskedModel(settings=settings)]


def test_a_section_wins_over_the_command_line_which_is_the_default_of_all(tmp_path: Path) -> None:
    small, big = asked(tmp_path, TWO + 'max-model-len = "8k"', max_num_seqs=7, max_model_len="2k", cores=("3",))
    assert (small.section, small.settings.model, small.settings.max_model_len) == ("small", "one.gguf", 2000)
    assert (big.section, big.settings.model, big.settings.max_model_len) == ("big", "two.gguf", 8000)
    assert small.settings.max_num_seqs == big.settings.max_num_seqs == 7
    assert (small.settings.cores, big.settings.cores) == (("0", "1"), ()), "--cores is what models share out"


def test_the_environment_names_no_model_of_a_section(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Red when a name from the environment reaches every model: two would be served as one."""
    monkeypatch.setenv("RELEVO_MAX_NUM_SEQS", "9")
    small, big = plan(tmp_path, TWO).models
    assert small.served.served_model_names == ("small",) and big.served.served_model_names == ("big", "alias")
    assert small.ask.settings.max_num_seqs == 9
    monkeypatch.setenv("RELEVO_SERVED_MODEL_NAME", "everything")
    with pytest.raises(SettingsError, match="--served-model-name is of one model"):
        asked(tmp_path, TWO)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no section"),
        ("model = 1", "is no section"),
        ("[a]\ntopology = '1p1d'", "does not say which model"),
        ("[a]\nmodel = 'x'\nmax_modle_len = 5", "max_modle_len, which is no setting of a model"),
        ("[a]\nmodel = 'x'\nport = 1", "port, which is of the whole server; use --port"),
        ("[a]\nmodel = 'x'\nblock_size = 0", "block_size = 0: input should be greater"),
        ("[a]\nmodel = 'x'\ndtype = 'int3'", "dtype = int3"),
        ("[a]\nmodel = 'x'\nprice = 3", "price must be a table"),
        ("['a/b']\nmodel = 'x'", "must be named"),
        ("[a\n", "cannot be read"),
    ],
)
def test_a_wrong_file_is_named_with_what_is_wrong(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(SettingsError, match=said) as caught:
        asked(tmp_path, text)
    assert "models.toml" in caught.value.message


@pytest.mark.parametrize(
    ("text", "settings", "said"),
    [
        (TWO, {"model": "x.gguf"}, "MODEL x.gguf is of one model"),
        (TWO.replace('["big", "alias"]', '"small"'), {}, "models small and big both are to be served as small"),
        (TWO + "cores = [1]", {}, "models small and big both have core 1"),
        (TWO + "cores = [99]", {}, "cores of model big: 99"),
        (TWO + 'topology = "9p9d"', {}, r"model big: --topology 9p9d starts 18 workers"),
        (TWO + 'topology = "3x"', {}, "3x"),
        (TWO + "max_model_len = 99999999", {}, "model big: --max-model-len 99999999"),
        (TWO.replace("cores = [0, 1]", "") + 'topology = "7p1d"', {}, r"start 10 workers \(small 2, big 8\)"),
    ],
)
def test_what_cannot_work_names_the_model(tmp_path: Path, text: str, settings: dict[str, Any], said: str) -> None:
    with pytest.raises(SettingsError, match=said):
        plan(tmp_path, text, **settings)


def test_each_model_has_workers_cores_and_an_arena_of_its_own(tmp_path: Path) -> None:
    small, big = plan(tmp_path, TWO).models
    assert [worker.worker_id for worker in small.workers] == ["small/prefill-0", "small/decode-0"]
    assert [worker.worker_id for worker in big.workers] == ["big/hybrid-0", "big/hybrid-1"], "auto, with six cores"
    assert [worker.cores for worker in (*small.workers, *big.workers)] == [(0,), (1,), (2, 3, 4), (5, 6, 7)]
    assert all(worker.num_arena_blocks == 2 * worker.num_blocks for worker in big.workers)


def test_shares_divide_cores_and_the_default_kv_cache(tmp_path: Path) -> None:
    text = "[a]\nmodel = 'x'\nresource_share = 3\n[b]\nmodel = 'y'\n"
    free_bytes = GATEWAY_BYTES + SUPERVISOR_BYTES + 2 * WORKER_BYTES + GIB // 64
    a, b = plan(tmp_path, text, free_bytes=free_bytes, topology="unified").models
    assert (len(a.workers[0].cores), len(b.workers[0].cores)) == (6, 2)
    assert a.kv_bytes == pytest.approx(3 * b.kv_bytes, rel=0.01)
    alone_bytes = free_bytes - WORKER_BYTES
    alone = plan(tmp_path, "[a]\nmodel = 'x'\n", free_bytes=alone_bytes, topology="unified").models[0]
    assert a.kv_bytes + b.kv_bytes == pytest.approx(alone.kv_bytes, rel=0.01), "together they take what one would"


def test_memory_is_asked_for_all_models_together(tmp_path: Path) -> None:
    """Each would fit alone. Red when weights count once per model instead of once per worker."""
    text = TWO + "num_kv_blocks = 4\ntopology = 'unified'\n"
    plan(tmp_path, text, file_bytes=3 * GIB, free_bytes=10 * GIB, num_kv_blocks=4)
    with pytest.raises(
        SettingsError, match=r"small 6\.13 GiB with 2 workers, big 3\.06 GiB with 1 worker, gateway.*only 8\.00"
    ):
        plan(tmp_path, text, file_bytes=3 * GIB, free_bytes=8 * GIB, num_kv_blocks=4)


@pytest.mark.parametrize(
    ("settings", "num_bytes"), [({}, 500), ({"dtype": "float32"}, 4000), ({"quantization": "int8"}, 1000)]
)
def test_weights_are_as_large_as_they_are_loaded(settings: dict[str, Any], num_bytes: int) -> None:
    ask = ModelAsk(
        settings=Settings(**settings), model=FAKE_MODEL, model_hash="", weights_bytes=500, num_parameters=1000
    )
    assert weights_bytes(ask) == num_bytes


def test_a_price_is_of_its_section_or_of_the_file_of_prices(tmp_path: Path) -> None:
    prices = tmp_path / "prices.json"
    small = {"input_cost_per_token": "0.25", "output_cost_per_token": "0.5"}
    prices.write_text(json.dumps({"small": small}))
    text = TWO + "price = { input_cost_per_token = 0.0000001, output_cost_per_token = 2 }"
    made = plan(tmp_path, text, prices=str(prices), database_url="memory")
    found = with_metering(made, Settings(database_url="memory")).gateway.prices
    assert {name: price.input_cost_per_token for name, price in found.items()} == {
        "small": "0.25", "big": "0.0000001", "alias": "0.0000001",
    }  # fmt: skip


@pytest.mark.parametrize("name", ["prices.json", "prices.toml"])
def test_a_file_may_begin_with_a_byte_order_mark_and_must_be_utf8(tmp_path: Path, name: str) -> None:
    """Red when a file that was saved on Windows is refused, or another encoding is called truncated data."""
    path = tmp_path / name
    path.write_text('\ufeff{"a": 1}' if name.endswith("json") else "\ufeffa = 1", encoding="utf-8")
    assert read_document(str(path), "--prices") == {"a": 1}
    path.write_text("a = 1", encoding="utf-16")
    with pytest.raises(SettingsError, match=r"^--prices \S+ is not UTF-8 \(byte 0\); save it as UTF-8$"):
        read_document(str(path), "--prices")


def test_settings_know_whose_they_are() -> None:
    """Red when a setting is renamed and its place in these lists is forgotten."""
    assert set(Settings.model_fields) >= OF_ONE_MODEL | OF_THE_SERVER
    assert not OF_ONE_MODEL & OF_THE_SERVER
