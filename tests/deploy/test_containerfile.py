"""The container file takes what the checkout has, runs as a user without rights, and brings no compiler along."""

from __future__ import annotations

import re
from pathlib import Path

from relevo.settings import Settings

ROOT = Path(__file__).parents[2]
FILE = ROOT / "deploy" / "container" / "Containerfile"


def stages() -> dict[str, str]:
    found: dict[str, str] = {}
    for part in re.split(r"^(?=FROM )", FILE.read_text(), flags=re.MULTILINE)[1:]:
        name = re.match(r"FROM \S+ AS (\w+)", part)
        assert name is not None, part.splitlines()[0]
        found[name[1]] = part
    return found


def test_what_is_copied_is_in_the_checkout_and_is_let_through_to_the_builder() -> None:
    let_through = (FILE.parent / "Containerfile.dockerignore").read_text().splitlines()
    lines = re.findall(r"^COPY (?!--from)(.+)$", stages()["build"], re.MULTILINE)
    copied = [word for line in lines for word in line.split()[:-1]]
    assert len(copied) >= 6
    for name in copied:
        assert (ROOT / name).exists(), f"{name} is not there"
        assert f"!{name.removeprefix('./')}" in let_through, f"{name} does not get to the builder"


def test_what_runs_has_no_rights_and_a_first_process_that_reaps() -> None:
    stage = stages()["relevo"]
    assert re.findall(r"^USER (.+)$", stage, re.MULTILINE)[-1] == "10001:10001"
    assert 'ENTRYPOINT ["tini", "--", "relevo"]' in stage
    assert "g++" not in stage and "--from=build" in stage


def test_settings_of_the_image_exist() -> None:
    text = FILE.read_text()
    for name in re.findall(r"\bRELEVO_([A-Z_]+)=", text):
        assert name.lower() in Settings.model_fields, name
    for flag in re.findall(r'"--([a-z-]+)"', stages()["relevo"]):
        assert flag == "help" or flag.replace("-", "_") in Settings.model_fields, flag
