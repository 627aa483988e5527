"""What a schema does not hold: the ways in which rollouts, probes, scalers and budgets of others went wrong."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from pathlib import Path

import pytest
from rendered import CASES, Document, main_container, needs_helm, of_kind, pod_templates, selects

from relevo.settings import Settings
from relevo.telemetry.metric_table import BY_NAME

pytestmark = needs_helm
END_S = 5  # after the drain, at the least
FOLLOWER = "follower"  # of a group: a part of its leader's engine
WORKLOADS = ("Deployment", "StatefulSet", "LeaderWorkerSet")
WANTED = "relevo:planner_wanted_workers"


def is_engine(pod: Document) -> bool:
    """Another's, in its own image."""
    return "command" in main_container(pod)


def flags(container: Document) -> dict[str, str]:
    found = {}
    for word in container["args"]:
        name, _, value = word.removeprefix("--").partition("=")
        if name == "set":
            name, _, value = value.partition("=")
        found[name.replace("_", "-")] = value
    return found


def nodes_of(case: str) -> list[tuple[str, Document]]:
    return [(name, pod) for name, pod in pod_templates(case) if FOLLOWER not in name]


# ---- rollouts --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES)
def test_a_pod_may_take_as_long_to_end_as_it_was_told(case: str) -> None:
    """Red when the kubelet kills before the drain that the process was given is over."""
    for name, pod in nodes_of(case):
        container = main_container(pod)
        pre_stop = container.get("lifecycle", {}).get("preStop", {}).get("sleep", {}).get("seconds", 0)
        told = flags(container)
        if "disaggregation-mode" in told:
            continue  # SGLang has no such flag
        drain_s = float(told["shutdown-timeout" if is_engine(pod) else "shutdown-timeout-s"])
        assert pod["spec"]["terminationGracePeriodSeconds"] >= pre_stop + drain_s + END_S, name


@pytest.mark.parametrize("case", CASES)
def test_a_rollout_takes_no_more_than_one_pod_away(case: str) -> None:
    for each in of_kind(case, "Deployment"):
        rolling = each["spec"]["strategy"].get("rollingUpdate")
        if rolling is None:  # its claim is one pod's at a time
            volumes = {volume["name"]: volume for volume in each["spec"]["template"]["spec"]["volumes"]}
            assert volumes["state"].get("persistentVolumeClaim"), case
            continue
        assert rolling["maxUnavailable"] <= 1 and rolling["maxUnavailable"] + rolling["maxSurge"] >= 1
    for each in of_kind(case, "LeaderWorkerSet"):
        assert each["spec"]["leaderWorkerTemplate"]["restartPolicy"] == "RecreateGroupAfterStart"


@pytest.mark.parametrize("case", CASES)
def test_why_a_container_ended_is_kept(case: str) -> None:
    for _, pod in pod_templates(case):
        for each in (*pod["spec"].get("initContainers", []), *pod["spec"]["containers"]):
            assert each["terminationMessagePolicy"] == "FallbackToLogsOnError"


@pytest.mark.parametrize("case", CASES)
def test_an_init_container_ends_by_itself(case: str) -> None:
    """Red when what runs beside the worker is one: a proxy there would keep the worker from starting."""
    for _, pod in pod_templates(case):
        for each in pod["spec"].get("initContainers", []):
            assert each["command"][0] == "/bin/sh" and "args" not in each and "ports" not in each


# ---- probes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES)
def test_liveness_is_asked_of_what_no_request_can_delay_and_for_a_minute(case: str) -> None:
    for name, pod in nodes_of(case):
        container = main_container(pod)
        live, ready, start = (container[f"{kind}Probe"] for kind in ("liveness", "readiness", "startup"))
        assert live["periodSeconds"] * live["failureThreshold"] >= 60 and live["timeoutSeconds"] < live["periodSeconds"]
        allowed_s = start["periodSeconds"] * start["failureThreshold"]
        if is_engine(pod):  # it has one path, so patience has to do
            assert live["periodSeconds"] * live["failureThreshold"] >= 120 and allowed_s >= 70, name
            continue
        assert live["httpGet"] == {"path": "/live", "port": "probes"}
        assert ready["httpGet"] != live["httpGet"]
        assert allowed_s >= float(flags(container)["start-timeout-s"]) + 30


@pytest.mark.parametrize("case", CASES)
def test_a_node_is_ready_without_a_gateway_and_found_without_being_ready(case: str) -> None:
    """Red when each waits for the other: the gateway for workers, workers for the name of a gateway that is ready."""
    for name, pod in nodes_of(case):
        port = main_container(pod)["readinessProbe"]["httpGet"]["port"]
        assert port == ("http" if name.endswith("-gateway") else "engine" if is_engine(pod) else "probes")
    services = of_kind(case, "Service")
    hidden = [each for each in services if each["spec"].get("clusterIP") == "None"]
    assert len(hidden) == len(services) - 1
    assert all(each["spec"]["publishNotReadyAddresses"] is True for each in hidden)


# ---- scalers ---------------------------------------------------------------------------------------------------------


def query_of(scaler: Document) -> str:
    if scaler["kind"] == "ScaledObject":
        return str(scaler["spec"]["triggers"][0]["metadata"]["query"])
    return str(scaler["metadata"]["annotations"]["relevo/query"])


@pytest.mark.parametrize("case", CASES)
def test_a_pool_has_one_scaler_at_most_and_then_no_number_of_its_own(case: str) -> None:
    targets = [
        (each["spec"]["scaleTargetRef"]["kind"], each["spec"]["scaleTargetRef"]["name"])
        for each in of_kind(case, "HorizontalPodAutoscaler", "ScaledObject")
    ]
    assert len(targets) == len(set(targets))
    for each in of_kind(case, *WORKLOADS):
        is_scaled = (each["kind"], each["metadata"]["name"]) in targets
        assert ("replicas" in each["spec"]) is not is_scaled, "two owners of one number"
        targets = [target for target in targets if target != (each["kind"], each["metadata"]["name"])]
    assert targets == [], "scales what is not there"


@pytest.mark.parametrize("case", CASES)
def test_no_data_is_not_zero_and_going_down_is_slow(case: str) -> None:
    for scaler in of_kind(case, "HorizontalPodAutoscaler", "ScaledObject"):
        query = query_of(scaler)
        assert "vector(" not in query and "absent" not in query and "or " not in query
        spec = scaler["spec"]
        if scaler["kind"] == "ScaledObject":
            assert spec["triggers"][0]["metadata"]["ignoreNullValues"] == "false"
            assert spec["fallback"]["behavior"] == "currentReplicasIfHigher" and spec["minReplicaCount"] >= 1
            spec = spec["advanced"]["horizontalPodAutoscalerConfig"]
        else:
            assert spec["minReplicas"] >= 1 and len(spec["metrics"]) == 1
        down = spec["behavior"]["scaleDown"]
        if WANTED in query:  # the planner has waited before it wants less
            assert down["stabilizationWindowSeconds"] == 0
            continue
        assert down["stabilizationWindowSeconds"] >= 60
        assert down["policies"] == [{"type": "Pods", "value": 1, "periodSeconds": 120}]


def test_scalers_ask_for_metrics_and_labels_that_there_are() -> None:
    """Red when a metric is renamed: a query without an answer scales nothing."""
    asked = set()
    for case in CASES:
        for scaler in of_kind(case, "HorizontalPodAutoscaler", "ScaledObject"):
            query = query_of(scaler)
            (name,) = re.findall(r"\b((?:relevo|vllm):\w+)\{", query)
            labels = set(re.findall(r'(\w+)="', query)) - {"namespace", "service"}
            labels |= set(re.findall(r"by \((\w+)\)", query))
            if scaler["kind"] == "HorizontalPodAutoscaler":  # an adapter asks for these
                (metric,) = scaler["spec"]["metrics"]
                labels |= metric["external"]["metric"]["selector"]["matchLabels"].keys() - {"namespace", "service"}
            assert name in BY_NAME and labels <= set(BY_NAME[name].labels), query
            asked.add(name)
    assert len(asked) == 5


def test_the_planner_and_the_scaler_have_the_same_bounds() -> None:
    """Red when the planner wants a number that its scaler does not give, or none is planned."""
    for case in CASES:
        args = [each for workload in of_kind(case, "Deployment") for each in args_of(workload)]
        scalers = of_kind(case, "HorizontalPodAutoscaler", "ScaledObject")
        wanted = [each["spec"] for each in scalers if WANTED in query_of(each)]
        assert any(arg.startswith("--max-workers") for arg in args) is bool(wanted)
        for spec in wanted:
            least = spec.get("minReplicas", spec.get("minReplicaCount"))
            most = spec.get("maxReplicas", spec.get("maxReplicaCount"))
            assert {"--planner=on", f"--min-workers={least}", f"--max-workers={most}"} <= set(args)


def args_of(workload: Document) -> list[str]:
    return [str(arg) for each in workload["spec"]["template"]["spec"]["containers"] for arg in each.get("args", [])]


# ---- disruption ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES)
def test_a_machine_can_always_be_emptied(case: str) -> None:
    """Evictions that are allowed when all pods are well: at least one, of every kind of pod."""
    budgets = of_kind(case, "PodDisruptionBudget")
    for workload in of_kind(case, *WORKLOADS):
        name, spec = workload["metadata"]["name"], workload["spec"]
        group = spec.get("leaderWorkerTemplate", {})
        labels = (group.get("leaderTemplate") or spec.get("template"))["metadata"]["labels"]
        num_pods = spec.get("replicas", 1) * group.get("size", 1)
        mine = [each["spec"] for each in budgets if selects(each["spec"]["selector"], labels)]
        assert len(mine) <= 1, f"two budgets of one pod: no eviction is answered ({name})"
        for budget in mine:
            needed = num_pods - budget["maxUnavailable"] if "maxUnavailable" in budget else budget["minAvailable"]
            assert num_pods - needed >= 1, name
    if case != "without policies":
        assert len(budgets) == len(of_kind(case, *WORKLOADS))


# ---- what is named is there ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES)
def test_ports_and_volumes_are_declared_where_they_are_named(case: str) -> None:
    for name, pod in pod_templates(case):
        container = main_container(pod)
        ports = {each["name"]: each["containerPort"] for each in container.get("ports", [])}
        assert len(set(ports.values())) == len(ports)
        probes = [container[key]["httpGet"]["port"] for key in container if key.endswith("Probe")]
        assert set(probes) <= set(ports), name
        volumes = {each["name"] for each in pod["spec"]["volumes"]}
        for each in (*pod["spec"].get("initContainers", []), container):
            assert {mount["name"] for mount in each["volumeMounts"]} <= volumes, name
    for service in of_kind(case, "Service"):
        selector = {"matchLabels": service["spec"]["selector"]}
        behind = [pod for _, pod in pod_templates(case) if selects(selector, pod["metadata"]["labels"])]
        ports = {each["name"] for each in main_container(behind[0])["ports"]}
        assert len(behind) == 1 and {each["targetPort"] for each in service["spec"]["ports"]} <= ports


@pytest.mark.parametrize("case", CASES)
def test_every_pod_is_behind_a_policy_and_control_and_kv_ports_are_the_releases_alone(case: str) -> None:
    policies = of_kind(case, "NetworkPolicy")
    if case == "without policies":
        assert policies == []
        return
    for name, pod in pod_templates(case):
        mine = [each for each in policies if selects(each["spec"]["podSelector"], pod["metadata"]["labels"])]
        assert mine, name
        for rule in [rule for each in mine for rule in each["spec"]["ingress"]]:
            is_open = "from" not in rule
            assert not is_open or [port["port"] for port in rule["ports"]] == ["http"], name


@pytest.mark.parametrize("case", CASES)
def test_flags_of_the_gateway_and_settings_of_nodes_exist(case: str) -> None:
    if "kv_port" not in Settings.model_fields or "worker" not in Settings.model_fields:
        pytest.skip("this release has no KV port, or no foreign engines, yet")
    for name, pod in [(name, pod) for name, pod in pod_templates(case) if not is_engine(pod)]:
        container = main_container(pod)
        if name.endswith("-gateway"):
            named = [word.partition("=")[0][2:] for word in container["args"] if word.startswith("--")]
        else:
            sets = [word for word in container.get("args", []) if word.startswith("--set=")]
            named = [word.split("=")[1] for word in sets]
        for each in named:
            assert each.replace("-", "_") in Settings.model_fields, f"{name} is given --{each}"


@pytest.mark.parametrize("case", CASES)
def test_names_of_nodes_fit(case: str) -> None:
    """Of 63 characters: a pod of a Deployment has 17 more than it."""
    for each in of_kind(case, "Deployment"):
        assert len(each["metadata"]["name"]) + 17 <= 63


@pytest.mark.parametrize("case", CASES)
def test_the_gateway_knows_every_pod_of_an_engine_by_its_name(case: str) -> None:
    """And what it is told of them is what they are started with."""
    gateway = next(pod for name, pod in pod_templates(case) if name.endswith("-gateway"))
    told = [
        word.partition("=")[2].split(",") for word in main_container(gateway)["args"] if word.startswith("--worker=")
    ]
    expected = set()
    for each in of_kind(case, "StatefulSet", "LeaderWorkerSet"):
        name, spec = each["metadata"]["name"], each["spec"]
        if each["kind"] == "StatefulSet":
            assert spec["serviceName"] in {service["metadata"]["name"] for service in of_kind(case, "Service")}
        expected |= {f"http://{name}-{number}.{name}.inference.svc:8100" for number in range(spec["replicas"])}
    assert {words[0] for words in told} == expected or case.startswith("example ")
    for words in told:
        parts = dict(word.split("=", 1) for word in words[1:])
        pod = next(pod for name, pod in nodes_of(case) if f"/{name.removesuffix(' leader')}-" in words[0])
        given = main_container(pod)["args"]
        if parts["engine"] == "sglang":
            assert f"--disaggregation-mode={parts['role']}" in given
            continue
        (transfer,) = [json.loads(word.partition("=")[2]) for word in given if word.startswith("--kv-transfer-config=")]
        assert transfer["kv_role"] == {"prefill": "kv_producer", "decode": "kv_consumer"}[parts["role"]]
        assert transfer["kv_connector_extra_config"]["kv_lease_duration"] == int(parts["lease_s"])
        assert f"--block-size={flags(main_container(gateway))['block-size']}" in given
        assert "--tokens-only" in given


@pytest.mark.parametrize("case", CASES)
def test_pods_have_no_rights_and_no_secret_is_written_out(case: str) -> None:
    for _, pod in pod_templates(case):
        assert pod["spec"]["automountServiceAccountToken"] is False and pod["spec"]["enableServiceLinks"] is False
        assert pod["spec"]["securityContext"]["runAsNonRoot"] is True
        for each in (*pod["spec"].get("initContainers", []), *pod["spec"]["containers"]):
            rights = each["securityContext"]
            assert rights["readOnlyRootFilesystem"] is True and rights["allowPrivilegeEscalation"] is False
            assert "ALL" in rights["capabilities"]["drop"]
    assert of_kind(case, "Secret") == []
    pools = [pod for name, pod in nodes_of(case) if not name.endswith("-gateway") and not is_engine(pod)]
    for pod in pools:
        (secret,) = [each["secret"] for each in pod["spec"]["volumes"] if each["name"] == "cluster-secret"]
        assert [item["key"] for item in secret["items"]] == ["join-token"], (
            "a worker has no use for the authority's key"
        )


@pytest.mark.parametrize("case", ["least", "sglang"])
def test_shared_memory_is_sized_where_an_engine_uses_it(case: str) -> None:
    for _, pod in pod_templates(case):
        mounts = {mount["mountPath"]: mount["name"] for mount in main_container(pod)["volumeMounts"]}
        volumes = {each["name"]: each for each in pod["spec"]["volumes"]}
        if is_engine(pod):
            assert volumes[mounts["/dev/shm"]]["emptyDir"] == {"medium": "Memory", "sizeLimit": "8Gi"}
        else:
            assert "/dev/shm" not in mounts, "the own engine's arena is a nameless file in memory"


def test_silent_streams_are_kept_alive_below_the_usual_minute_of_proxies() -> None:
    for case in CASES:
        for name, pod in nodes_of(case):
            if name.endswith("-gateway"):
                assert 0 < float(flags(main_container(pod))["sse-keepalive-s"]) < 60


# ---- what the init container does ------------------------------------------------------------------------------------


def prepare(case: str, gateway: bool, tmp_path: Path, secret: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Its script, run here with folders of ours and a `relevo` that says what it was asked."""
    pod = next(pod for name, pod in nodes_of(case) if name.endswith("-gateway") is gateway)
    (container,) = pod["spec"]["initContainers"]
    mounted, state, programs = (tmp_path / name for name in ("secret", "node", "bin"))
    for folder in (mounted, state, programs):
        folder.mkdir(exist_ok=True)
    for name, text in secret.items():
        (mounted / f"..{name}").write_text(text)
        link = mounted / name
        link.unlink(missing_ok=True)
        link.symlink_to(f"..{name}")  # as the kubelet does
    program = programs / "relevo"
    program.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/asked\ntouch {state}/cluster/node.pem\n')
    program.chmod(0o755)
    script = (
        container["command"][-1].replace("/run/relevo-secret", str(mounted)).replace("/var/lib/relevo-node", str(state))
    )
    environment = {"PATH": f"{programs}:/usr/bin:/bin", "POD_NAME": "gateway-abc"}
    return subprocess.run(["/bin/sh", "-ec", script], capture_output=True, text=True, env=environment, timeout=20)


def modes(folder: Path) -> dict[str, int]:
    return {path.name: path.lstat().st_mode & 0o7777 for path in folder.iterdir()}


def test_a_head_gets_the_authority_as_files_of_its_own_and_a_certificate_once(tmp_path: Path) -> None:
    secret = {"ca.crt": "C", "ca.key": "K", "tokens.json": "{}", "join-token": "T"}
    for _start in range(2):
        assert prepare("least", True, tmp_path, secret).returncode == 0
    folder = tmp_path / "node" / "cluster"
    assert folder.stat().st_mode & 0o077 == 0
    assert modes(folder) == {
        "ca.crt": 0o600,
        "ca.key": 0o600,
        "tokens.json": 0o600,
        "node.pem": modes(folder)["node.pem"],
    }
    assert not any(path.is_symlink() for path in folder.iterdir())
    asked = (tmp_path / "asked").read_text().splitlines()
    assert [shlex.split(line)[:2] for line in asked] == [["cluster", "head"]] and "--name gateway-abc" in asked[0]


def test_a_worker_gets_the_token_alone(tmp_path: Path) -> None:
    assert prepare("least", False, tmp_path, {"join-token": "T"}).returncode == 0
    assert modes(tmp_path / "node" / "cluster") == {"join-token": 0o600}


def test_a_secret_without_the_token_is_named(tmp_path: Path) -> None:
    refused = prepare("least", False, tmp_path, {})
    assert refused.returncode == 2
    assert "the Secret relevo-cluster has no join-token" in refused.stderr
