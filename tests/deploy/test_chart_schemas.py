"""Everything the chart makes is what Kubernetes and the projects of its other kinds take, every field of it."""

from __future__ import annotations

import subprocess
import sys
from functools import cache
from typing import Any

import pytest
import yaml
from deploy_tools import CRDS, FOLDER, KUBERNETES, MISSING, tool
from rendered import CASES, CHART, DEPLOY, EXAMPLES, LEAST, Document, documents, helm, needs_helm

CUSTOM = {name.partition("_")[0] for name in CRDS}  # groups
PACKAGES = FOLDER / "python"
needs_schemas = pytest.mark.skipif(not (PACKAGES / "kubernetes_validate").exists(), reason=f"schemas: {MISSING}")


@cache
def validator() -> Any:
    sys.path.append(str(PACKAGES))
    import kubernetes_validate  # type: ignore[import-not-found,unused-ignore]

    return kubernetes_validate


@cache
def custom_schemas() -> dict[tuple[str, str], Any]:
    """By apiVersion and kind; fields that a CRD does not name are refused, as a strict server refuses them."""
    found: dict[tuple[str, str], Any] = {}
    for path in (FOLDER / "crds").glob("*.yaml"):
        definition = yaml.load(path.read_text(), yaml.CSafeLoader)["spec"]
        for version in definition["versions"]:
            key = (f"{definition['group']}/{version['name']}", definition["names"]["kind"])
            found[key] = strict(version["schema"]["openAPIV3Schema"])
    return found


def strict(schema: Any) -> Any:
    if isinstance(schema, list):
        return [strict(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    made = {name: strict(each) if name != "default" else each for name, each in schema.items()}
    is_open = schema.get("x-kubernetes-preserve-unknown-fields") or "additionalProperties" in schema
    if isinstance(schema.get("properties"), dict) and schema.get("type") == "object" and not is_open:
        made["additionalProperties"] = False
    return made


def check(document: Document) -> None:
    import jsonschema

    key = (document["apiVersion"], document["kind"])
    if key not in custom_schemas() and not any(key[0].startswith(group) for group in CUSTOM):
        validator().validate(document, KUBERNETES, strict=True)
        return
    schema = custom_schemas().get(key)
    if schema is None:
        pytest.skip(f"the CRD of {key[1]} {MISSING} CRDS=FOLDER")
    metadata_free = {**document, "metadata": {}}
    jsonschema.Draft202012Validator(with_open_metadata(schema)).validate(metadata_free)


def with_open_metadata(schema: Any) -> Any:
    return {**schema, "properties": {**schema["properties"], "metadata": {"type": "object"}}}


@needs_helm
@needs_schemas
@pytest.mark.parametrize("case", CASES)
def test_what_is_rendered_is_taken(case: str) -> None:
    for document in documents(case):
        check(document)


@needs_helm
@needs_schemas
def test_a_field_that_is_not_there_is_found_in_every_kind() -> None:
    """Of the test above: red when a schema is left open."""
    import jsonschema

    seen = set()
    for case in ("example own-1p1d", "example vllm-many-hosts"):
        for document in documents(case):
            if document["kind"] in seen or "spec" not in document:
                continue
            seen.add(document["kind"])
            wrong = {**document, "spec": {**document["spec"], "replicaz": 1}}
            with pytest.raises((jsonschema.ValidationError, validator().ValidationError)):
                check(wrong)
    assert {"Deployment", "LeaderWorkerSet", "InferencePool", "HTTPRoute", "ScaledObject", "PrometheusRule"} <= seen


@needs_helm
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_helm_has_nothing_to_say_of_an_example(path: Any) -> None:
    linted = helm("lint", "--strict", str(CHART), "--values", str(path))
    assert linted.returncode == 0 and "[WARNING]" not in linted.stdout, linted.stdout


@needs_helm
@needs_schemas
def test_the_kustomize_example_is_taken_too() -> None:
    command = [str(tool("kubectl")), "kustomize", "--enable-helm", "--helm-command", str(tool("helm"))]
    options = ["--load-restrictor", "LoadRestrictionsNone", str(DEPLOY / "kustomize")]
    built = subprocess.run([*command, *options], capture_output=True, text=True, timeout=60)
    assert built.returncode == 0, built.stderr
    made = [each for each in yaml.load_all(built.stdout, yaml.CSafeLoader) if each]
    for document in made:
        check(document)
    pools = [each for each in made if each["metadata"]["name"] == "relevo-workers" and each["kind"] == "Deployment"]
    spread = pools[0]["spec"]["template"]["spec"]["topologySpreadConstraints"]
    assert [each["topologyKey"] for each in spread] == ["kubernetes.io/hostname", "topology.kubernetes.io/zone"]


@needs_helm
def test_notes_say_what_to_look_at() -> None:
    settings = [word for each in LEAST for word in ("--set", each)]
    shown = helm("install", "--dry-run=client", "r", str(CHART), "--namespace", "inference", *settings)
    notes = shown.stdout.partition("\nNOTES:\n")[2]
    assert shown.returncode == 0 and "%!" not in notes and "<no value>" not in shown.stdout
    for word in ("kubectl -n inference", "relevo nodes", "relevo:handoffs_total", "there are no keys"):
        assert word in notes


@pytest.mark.skipif(tool("hadolint") is None, reason=f"hadolint {MISSING}")
def test_the_container_file_is_linted() -> None:
    command = [str(tool("hadolint")), str(DEPLOY / "container" / "Containerfile")]
    linted = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert linted.returncode == 0, linted.stdout
