"""Installs clients in the versions of versions.txt, each into a folder of its own below one cache folder."""

from __future__ import annotations

import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

VERSIONS = Path(__file__).with_name("versions.txt")
_PYTHONS = (sys.executable, "python3.12", "python3.13", "python3.11")
_PINS = "from importlib.metadata import requires; import sys; print(*requires(sys.argv[1]) or (), sep='\\n')"


@dataclass(frozen=True)
class Package:
    registry: str  # "npm" or "pypi"
    name: str
    version: str
    unpinned: tuple[str, ...] = ()

    def folder(self, cache: Path) -> Path:
        return cache / f"{self.name.strip('@').replace('/', '-')}-{self.version}"

    def command(self, cache: Path, program: str) -> str:
        """Path of a program of it. Installs it first where it is not there."""
        folder = self.folder(cache)
        done = folder / "installed"
        if not done.exists():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            if self.registry == "npm":
                self._install_from_npm(folder)
            else:
                self._install_from_pypi(folder)
            done.touch()
        return str(folder / ("node_modules/.bin" if self.registry == "npm" else "bin") / program)

    def _install_from_npm(self, folder: Path) -> None:
        (folder / "package.json").write_text("{}\n")
        run("npm", "install", "--no-audit", "--no-fund", "--loglevel=error", f"{self.name}@{self.version}", cwd=folder)

    def _install_from_pypi(self, folder: Path) -> None:
        """With the first Python that the package takes."""
        refusals = []
        for python in _pythons():
            shutil.rmtree(folder)
            run(python, "-m", "venv", str(folder))
            pip = (str(folder / "bin/python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
            try:
                run(*pip, "--no-deps", f"{self.name}=={self.version}")
            except subprocess.CalledProcessError as error:
                refusals.append(f"{python}: {error.stderr}")
                continue
            if self.unpinned:
                run(*pip, *self._requirements(str(folder / "bin/python")))
            else:
                run(*pip, f"{self.name}=={self.version}")
            return
        raise RuntimeError(f"no Python here takes {self.name} {self.version}:\n" + "\n".join(refusals))

    def _requirements(self, python: str) -> list[str]:
        stated = run(python, "-c", _PINS, self.name).splitlines()
        needed = [line for line in stated if "extra ==" not in line]
        return [each.partition("==")[0] if each.startswith(self.unpinned) else each for each in needed]


def packages(versions: Path = VERSIONS) -> dict[str, Package]:
    """By name."""
    lines = [line.split() for line in versions.read_text().splitlines() if line and not line.startswith("#")]
    return {name: Package(registry, name, version, tuple(rest)) for registry, name, version, *rest in lines}


def run(*command: str, cwd: Path | None = None) -> str:
    return subprocess.run(command, cwd=cwd, check=True, capture_output=True, text=True).stdout


def _pythons() -> list[str]:
    """Those that start: a name on the path may be that of a version that is not chosen."""
    found = [python for python in _PYTHONS if shutil.which(python)]
    return [python for python in found if subprocess.run([python, "-V"], capture_output=True).returncode == 0]
