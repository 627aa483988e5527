"""The chart as helm renders it, and what tests look for in it."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from deploy_tools import MISSING, tool

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
CHART = DEPLOY / "helm" / "relevo"
EXAMPLES = sorted((DEPLOY / "helm" / "values").glob("*.yaml"))
LEAST = ("cluster.secret=relevo-cluster", "auth.open=true", "pools.workers.replicas=1")  # what has no default

Document = dict[str, Any]
needs_helm = pytest.mark.skipif(tool("helm") is None, reason=f"helm {MISSING}")

# Beside the examples: each kind of value once, in company that it may meet.
MATRIX: dict[str, tuple[str, ...]] = {
    "least": LEAST,
    "one replica of each": (*LEAST, "pools.p.role=prefill", "pools.d.role=decode"),
    "hpa of every metric": (
        *LEAST,
        *(f"pools.{name}.autoscaling.kind=hpa" for name in ("a", "b", "c", "d")),
        "pools.a.autoscaling.metric=requestsInLine",
        "pools.b.autoscaling.metric=requestsRunning",
        "pools.c.autoscaling.metric=kvCacheUsage",
        "pools.d.autoscaling.metric=busy",
        "pools.d.autoscaling.target=0.5",
    ),
    "keda of every metric": (
        *LEAST,
        "autoscaling.prometheus=http://prometheus:9090",
        *(f"pools.{name}.autoscaling.kind=keda" for name in ("a", "b", "c", "d")),
        "pools.a.autoscaling.metric=requestsInLine",
        "pools.b.autoscaling.metric=requestsRunning",
        "pools.c.autoscaling.metric=kvCacheUsage",
        "pools.d.autoscaling.metric=busy",
    ),
    "hpa of the planner's number": (
        *LEAST,
        "pools.workers.autoscaling.kind=hpa",
        "pools.workers.autoscaling.metric=wantedWorkers",
        "pools.workers.autoscaling.maxReplicas=8",
    ),
    "keda of the planner's number": (
        *LEAST,
        "autoscaling.prometheus=http://prometheus:9090",
        "pools.workers.autoscaling.kind=keda",
        "pools.workers.autoscaling.metric=wantedWorkers",
    ),
    "long drains": (
        *LEAST,
        "gateway.drain.preStopSeconds=30,gateway.drain.seconds=900",
        "poolDefaults.drain.seconds=1200",
    ),
    "no preStop": (
        *LEAST,
        "gateway.drain.preStopSeconds=0,gateway.drain.seconds=0",
        "poolDefaults.drain.preStopSeconds=20",
    ),
    "own grace": (
        *LEAST,
        "gateway.terminationGracePeriodSeconds=135",
        "pools.workers.terminationGracePeriodSeconds=600",
    ),
    "encryption off": (*LEAST, "cluster.kvEncryption=off", "model.maxLength=8192"),
    "sglang": (
        "auth.open=true,model.name=org/model,poolDefaults.engine=sglang,poolDefaults.image.repository=lmsysorg/sglang",
        "pools.p.role=prefill,pools.d.role=decode,pools.d.replicas=3",
    ),
    "group of four": (
        "auth.open=true,model.name=org/model,poolDefaults.engine=vllm,poolDefaults.image.repository=vllm/vllm-openai",
        "pools.p.role=prefill,pools.p.hosts=4,pools.p.replicas=3,pools.d.role=decode",
        "engines.keySecret=engine-key,engines.blockSize=32,model.maxLength=32k",
    ),
    "quick start": (*LEAST, "model.loadSeconds=10", "model.maxLength=8k", "model.servedNames={a,b}"),
    "slow start": (*LEAST, "model.loadSeconds=14400", "image.digest=sha256:" + "0" * 64),
    "without policies": (*LEAST, "networkPolicy.enabled=false,disruptionBudgets=false,monitoring.serviceMonitor=true"),
    "long names": (*LEAST, "nameOverride=a-very-long-name-of-a-release-indeed", "pools.fifteen-letters.role=decode"),
    "everything for pods": (
        *LEAST,
        "poolDefaults.priorityClassName=high,poolDefaults.runtimeClassName=nvidia,poolDefaults.nodeSelector.zone=a",
        "gateway.podAnnotations.a=b,gateway.podLabels.c=d,serviceAccountName=relevo",
        "image.pullSecrets[0].name=pull,gateway.env[0].name=A,gateway.env[0].value=b,pools.workers.args={--set=cores=0}",
    ),
    "route without a pool": (*LEAST, "route.enabled=true,route.parents[0].name=gw,monitoring.rules=true"),
}
CASES = [*MATRIX, *(f"example {path.stem}" for path in EXAMPLES)]


def helm(*arguments: str) -> subprocess.CompletedProcess[str]:
    path = tool("helm")
    assert path is not None
    return subprocess.run([str(path), *arguments], capture_output=True, text=True, timeout=60)


def template(*values: str, files: tuple[Path, ...] = ()) -> subprocess.CompletedProcess[str]:
    settings = [word for each in values for word in ("--set", each)]
    named = [word for each in files for word in ("--values", str(each))]
    return helm("template", "r", str(CHART), "--namespace", "inference", *named, *settings)


@cache
def documents(case: str) -> list[Document]:
    if case.startswith("example "):
        made = template(files=(DEPLOY / "helm" / "values" / f"{case.removeprefix('example ')}.yaml",))
    else:
        made = template(*MATRIX[case])
    assert made.returncode == 0, made.stderr
    return [each for each in yaml.load_all(made.stdout, yaml.CSafeLoader) if each]


def of_kind(case: str, *kinds: str) -> list[Document]:
    return [each for each in documents(case) if each["kind"] in kinds]


def pod_templates(case: str) -> Iterator[tuple[str, Document]]:
    """Each template of a pod with the name of what makes such pods."""
    for each in of_kind(case, "Deployment", "StatefulSet"):
        yield each["metadata"]["name"], each["spec"]["template"]
    for each in of_kind(case, "LeaderWorkerSet"):
        group = each["spec"]["leaderWorkerTemplate"]
        yield f"{each['metadata']['name']} leader", group["leaderTemplate"]
        yield f"{each['metadata']['name']} follower", group["workerTemplate"]


def main_container(pod: Document) -> Document:
    containers: list[Document] = pod["spec"]["containers"]
    assert len(containers) == 1
    return containers[0]


def selects(selector: Document, labels: dict[str, str]) -> bool:
    assert set(selector) == {"matchLabels"}
    return all(labels.get(name) == value for name, value in selector["matchLabels"].items())
