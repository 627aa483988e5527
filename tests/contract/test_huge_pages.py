"""Which memory a shared arena lies on: huge pages where the system gives any, and in words why not."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from transport_rigs import make_layout

from relevo.kv import huge_page_mount
from relevo.kv.arena import Arena
from relevo.kv.arena_file import create_arena_file
from relevo.kv.huge_pages import huge_page_file

LAYOUT = make_layout(2**20)


def told(folder: Path, text: str) -> Path:
    """A file like `shmem_enabled`."""
    file = folder / "shmem_enabled"
    file.write_text(text)
    return file


@pytest.mark.parametrize(
    ("text", "pages"),
    [
        ("always within_size [advise] never deny force", "2 MiB pages"),
        ("[always] within_size advise never deny force", "2 MiB pages"),
        ("always within_size advise never [deny] force", "small pages: shmem_enabled is deny"),
    ],
)
def test_a_memfd_is_left_to_what_the_system_says(tmp_path: Path, text: str, pages: str) -> None:
    assert huge_page_file(told(tmp_path, text)) == (-1, pages)


def test_a_kernel_without_huge_pages_is_told(tmp_path: Path) -> None:
    assert huge_page_file(tmp_path / "none") == (-1, "small pages: the kernel has no huge ones")


def test_a_mount_that_is_refused_is_told_with_what_to_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huge_page_mount, "__file__", str(tmp_path / "refused.py"))
    (tmp_path / "refused.py").write_text("import sys\nsys.exit('a tmpfs with huge pages: Operation not permitted')\n")
    file = told(tmp_path, "always within_size advise [never] deny force")
    fd, pages = huge_page_file(file)
    assert fd == -1
    assert pages.startswith("4 KiB pages: a tmpfs with huge pages: Operation not permitted; ")
    assert f"echo advise | sudo tee {file}" in pages


def test_a_process_that_sends_nothing_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huge_page_mount, "__file__", str(tmp_path / "silent.py"))
    (tmp_path / "silent.py").write_text("")
    fd, pages = huge_page_file(told(tmp_path, "[never]"))
    assert (fd, pages.startswith("4 KiB pages: the process that mounts sent no file")) == (-1, True)


def test_the_mounting_process_says_in_one_line_what_failed(tmp_path: Path) -> None:
    """No folder to mount on: the tmpfs, or before it a namespace, is refused."""
    command = [sys.executable, "-I", "-S", huge_page_mount.__file__, "0", str(tmp_path / "none")]
    run = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert run.returncode == 1
    assert len(run.stderr.strip().splitlines()) == 1


def test_a_shared_arena_has_huge_pages_where_its_file_says_so(tmp_path: Path) -> None:
    """Red when the file is found and its mapping is not what asks: it would be as slow as without."""
    fd, pages = huge_page_file(told(tmp_path, "always within_size advise [never] deny force"))
    if fd < 0:
        pytest.skip(f"this system gives none: {pages}")
    os.close(fd)
    if "always within_size advise" not in Path("/sys/kernel/mm/transparent_hugepage/shmem_enabled").read_text():
        pytest.skip("this system has one set for memfds too")
    before = pmd_mapped_kb()
    with closing(Arena.create(LAYOUT, 8, shared=True)) as mine, closing(Arena.attach(mine.fd, LAYOUT, 8)) as theirs:
        mine.block(0)[:1] = b"\x01"
        assert pmd_mapped_kb() >= before + 2048
        assert theirs.block(0)[0] == 1
        assert not os.get_inheritable(mine.fd)


def test_no_mount_of_it_is_seen_by_others() -> None:
    mounts = Path("/proc/self/mounts").read_text()
    file = create_arena_file(LAYOUT, 2)
    try:
        assert Path("/proc/self/mounts").read_text() == mounts
        assert os.fstat(file.fd).st_nlink == 0
    finally:
        os.close(file.fd)


def pmd_mapped_kb() -> int:
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith(("ShmemPmdMapped", "FilePmdMapped")))
