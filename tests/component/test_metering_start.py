"""What is said of the ledger, its journal and its prices before a server starts.

Red when rows could be lost without a word, and when a file of prices ends a start with anything but one sentence.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from relevo.build.documents import read_document
from relevo.build.serve import plan_serving
from relevo.core.errors import SettingsError
from relevo.settings import Settings


@pytest.fixture
def notes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Of a start whose data folder cannot be written, and whose database is elsewhere."""
    monkeypatch.delenv("RELEVO_DATABASE_URL", raising=False)
    (tmp_path / "file").write_text("")
    asked = Settings(
        model="fake", data_dir=str(tmp_path / "file" / "data"), database_url=f"sqlite:///{tmp_path}/rows.db"
    )
    return "\n".join(plan_serving(asked).notes)


def test_a_data_folder_that_takes_no_journal_is_said(notes: str, tmp_path: Path) -> None:
    assert f"{tmp_path}/file/data/journal cannot be written" in notes and "are lost" in notes


def test_a_data_folder_that_takes_one_is_not_spoken_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RELEVO_DATABASE_URL", raising=False)
    for asked in (Settings(model="fake", data_dir=str(tmp_path)), Settings(model="fake", database_url="memory")):
        assert "are lost" not in "".join(plan_serving(asked).notes)


def test_what_clients_give_back_sealed_is_taken_after_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Red if the key of seals was drawn anew where there is a folder to keep one, or was the same elsewhere."""
    monkeypatch.delenv("RELEVO_DATABASE_URL", raising=False)

    def key(folder: str) -> str:
        return plan_serving(Settings(model="fake", data_dir=str(tmp_path / folder))).gateway.sealing_key

    assert key("a") == key("a")
    assert key("a") != key("b")
    assert len(bytes.fromhex(key("a"))) == 32


@pytest.mark.parametrize("ending", ["json", "toml"])
@pytest.mark.parametrize("number", ["1e999999999999999999999", "1e-99999999999999999999", "9" * 5000])
def test_a_number_that_is_none_is_said_in_one_sentence(tmp_path: Path, ending: str, number: str) -> None:
    path = tmp_path / f"prices.{ending}"
    path.write_text(f"price = {number}" if ending == "toml" else f'{{"price": {number}}}')
    with pytest.raises(SettingsError, match=r"--prices .*cannot be read: \S.{10,}") as refused:
        read_document(str(path), "--prices")
    assert len(refused.value.message) < 400


def test_a_file_without_bottom_is_said_in_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "prices.json"
    path.write_text("[" * 200_000)
    with pytest.raises(SettingsError, match="nested too deeply"):
        read_document(str(path), "--prices")
