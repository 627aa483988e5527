"""A wrong value is refused before anything is made, in one sentence that says what to change."""

from __future__ import annotations

import re

import pytest
from rendered import LEAST, needs_helm, template

VLLM = (
    "model.name=org/model,pools.workers.engine=vllm,pools.workers.role=decode,"
    "pools.workers.image.repository=vllm/vllm-openai"
)
WANTED = "pools.workers.autoscaling.kind=hpa,pools.workers.autoscaling.metric=wantedWorkers"

# Values beside the least ones, and words of the sentence.
CONTRADICTIONS = [
    ("cluster.secret=", "cluster.secret is empty, so no pod could join"),
    ("auth.open=false", "auth.secret is empty, so the gateway would serve whatever reaches it"),
    ("auth.secret=keys", "auth.secret is keys and auth.open is true; leave one of them out"),
    ("gateway.terminationGracePeriodSeconds=134", "preStop (10 s) and drain (120 s) and 5 s to end need 135; raise it"),
    ("pools.workers.terminationGracePeriodSeconds=64", "pools.workers.terminationGracePeriodSeconds is 64"),
    ("poolDefaults.terminationGracePeriodSeconds=30", "pools.workers.terminationGracePeriodSeconds is 30"),
    ("pools.workers.hosts=2", "pools.workers.hosts is 2 and its engine is own"),
    ("pools.workers.engineArgs={--x}", "are flags of vllm or sglang, and its engine is own"),
    (
        f"{VLLM},pools.workers.role=any",
        "whose workers have one role for life; set pools.workers.role to prefill or decode",
    ),
    ("pools.workers.engine=vllm,pools.workers.role=decode", "pools.workers.engine is vllm and its image is not named"),
    (f"{VLLM},model.name=smollm2", "model.name is smollm2, which is Relevo's own"),
    (f"{VLLM},pools.workers.engine=sglang,pools.workers.hosts=2", "pools.workers.hosts is 2 and its engine is sglang"),
    (f"{VLLM},pools.other.replicas=1", "pools have the engines own and vllm, which cannot hand KV to each other"),
    (
        f"{VLLM},pools.workers.autoscaling.kind=hpa",
        "knows pods of vllm by their names, given at its start; set replicas",
    ),
    (f"{VLLM},pools.workers.args={{--role=auto}}", "its engine is vllm; give its flags as engineArgs"),
    ("gateway.ledger.kind=claim", "gateway.ledger.claim is empty; name the PersistentVolumeClaim"),
    ("gateway.ledger.kind=claim,gateway.ledger.claim=c,gateway.replicas=2", "use postgres, or one replica"),
    ("gateway.ledger.kind=postgres", "gateway.ledger.secret is empty; name a Secret"),
    ("model.cache.kind=claim", "model.cache.claim is empty; name the PersistentVolumeClaim"),
    ("model.cache.kind=hostPath", "model.cache.hostPath is empty; name the folder"),
    ("cluster.kvPort=7000", "have to differ"),
    ("gateway.probePort=8000", "have to differ"),
    ("pools.workers.autoscaling.minReplicas=9", "minReplicas is 9 and maxReplicas 4; swap them"),
    ("pools.workers.autoscaling.kind=keda", "autoscaling.prometheus is empty; give the address"),
    (
        f"{WANTED},pools.other.replicas=1",
        "a number of workers of which the planner says who computes prompts; give one pool, with role any",
    ),
    (f"{WANTED},pools.workers.role=decode", "give one pool, with role any"),
    (f"{WANTED},gateway.replicas=2", "of which each sees a part of what comes in; use one replica"),
    (f"{WANTED},pools.workers.autoscaling.target=3", "wantedWorkers is a number of workers; leave the target out"),
    ("inferencePool.enabled=true", "inferencePool.picker.name is empty; name the Service"),
    ("route.enabled=true", "route.parents is empty; name the Gateway"),
    ("pools.sixteen-letters-x.role=any", "pools.sixteen-letters-x: the name of a pool has at most 15 small letters"),
    ("pools.Prefill.role=prefill", "pools.Prefill: the name of a pool"),
    ("networkPolicy.egress[0].to[0].ipBlock.cidr=10.0.0.0/8", "networkPolicy.restrictEgress is false"),
]
# What the schema refuses, and where it says so.
WRONG = [
    ("pools.workers.role=prefil", "'/pools/workers/role'", "must be one of 'prefill', 'decode', 'any'"),
    ("pools.workers.engine=tensorrt", "'/pools/workers/engine'", "must be one of 'own', 'vllm', 'sglang'"),
    ("pools.workers.replica=2", "'/pools/workers'", "'replica' not allowed"),
    ("pools.workers.replicas=0", "'/pools/workers/replicas'", "minimum"),
    ("pools.workers.replicas=two", "'/pools/workers/replicas'", "want integer"),
    ("pools.workers.autoscaling.minReplicas=0", "minReplicas", "minimum"),
    ("pools.workers.autoscaling.kind=hpa+keda", "kind", "must be one of 'none', 'hpa', 'keda'"),
    ("pools.workers.autoscaling.scaleDownWindowSeconds=0", "scaleDownWindowSeconds", "minimum"),
    ("pools.workers.args={serve}", "'/pools/workers/args/0'", "does not match pattern"),
    ("gateway.port=80000", "'/gateway/port'", "maximum"),
    ("gateway.drain.seconds=-1", "'/gateway/drain/seconds'", "minimum"),
    ("gateway.ledger.kind=sqlite", "'/gateway/ledger/kind'", "must be one of"),
    ("image.digest=sha256:12", "'/image/digest'", "does not match pattern"),
    ("inferencePool.failureMode=FailClosed", "'/inferencePool/failureMode'", "must be one of"),
    ("ipFamily=ipv6", "'/ipFamily'", "must be one of 'IPv4', 'IPv6'"),
    ("autoscaling.prometheus=prometheus:9090", "'/autoscaling/prometheus'", "does not match pattern"),
    ("apiKey=secret", "'apiKey' not allowed", "additional properties"),
]


@needs_helm
@pytest.mark.parametrize(("values", "sentence"), CONTRADICTIONS)
def test_values_that_contradict_each_other_are_named(values: str, sentence: str) -> None:
    refused = template(*LEAST, values)
    assert refused.returncode != 0 and refused.stdout == ""
    (said,) = re.findall(r"^Error: execution error at \([^)]*\): (.*)$", refused.stderr, re.MULTILINE)
    assert sentence in said


@needs_helm
@pytest.mark.parametrize(("values", "place", "sentence"), WRONG)
def test_a_value_that_is_none_is_named_with_its_place(values: str, place: str, sentence: str) -> None:
    refused = template(*LEAST, values)
    assert refused.returncode != 0 and refused.stdout == ""
    assert place in refused.stderr and sentence in refused.stderr


@needs_helm
def test_nothing_but_pools_is_refused_too() -> None:
    refused = template("cluster.secret=c", "auth.open=true")
    assert "pools is empty, so nothing would compute" in refused.stderr
