"""Alerts fire when they should and not before, by Prometheus's own test runner, and each has a runbook.

The cases are files in alert_rules/. Red when a rule is changed so that it fires for what is normal, or no more for what
is not; when an alert is added without a case, a duration, a severity or a section of docs/guides/alerts.md.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
RULES = ROOT / "src" / "relevo" / "dashboards"
CASES = sorted((Path(__file__).parent / "alert_rules").glob("*.yml"))
ALERTS = yaml.safe_load((RULES / "relevo-alerts.yml").read_text(encoding="utf-8"))["groups"][0]["rules"]
RECORDED = yaml.safe_load((RULES / "relevo-recording.yml").read_text(encoding="utf-8"))["groups"][0]["rules"]

needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="promtool is not here; on Debian: apt-get install prometheus"
)


def promtool(*arguments: str) -> None:
    done = subprocess.run(["promtool", *arguments], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


@needs_promtool
@pytest.mark.parametrize("case", CASES, ids=lambda path: path.stem)
def test_rules_say_what_their_cases_expect(case: Path) -> None:
    promtool("test", "rules", str(case))


@needs_promtool
def test_prometheus_takes_the_example_and_the_rules() -> None:
    promtool("check", "config", str(RULES / "prometheus.yml"))
    promtool("check", "rules", str(RULES / "relevo-alerts.yml"), str(RULES / "relevo-recording.yml"))


def test_every_rule_has_its_cases() -> None:
    """Red for an alert without one where it fires and one where it stays quiet, and for an untested recording rule."""
    cases = [case for path in CASES for case in yaml.safe_load(path.read_text(encoding="utf-8"))["tests"]]
    names = [case["name"] for case in cases]
    for alert in ALERTS:
        assert f"{alert['alert']} fires" in names
        assert any(name.startswith(f"{alert['alert']} stays quiet") for name in names)
    asked = " ".join(test["expr"] for case in cases for test in case.get("promql_expr_test", ()))
    assert [rule["record"] for rule in RECORDED if rule["record"] not in asked] == []


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: str(alert["alert"]))
def test_an_alert_says_how_bad_it_is_and_what_to_do(alert: dict[str, dict[str, str]]) -> None:
    assert alert["labels"]["severity"] in ("critical", "warning", "info")
    assert re.fullmatch(r"\d+m", str(alert["for"]))
    page, anchor = alert["annotations"]["runbook"].split("#")
    section = re.search(rf"^### {alert['alert']}$(.*?)(?=^#|\Z)", (ROOT / page).read_text("utf-8"), re.M | re.S)
    assert section is not None, f"{page} has no section {alert['alert']}"
    assert anchor == str(alert["alert"]).lower()
    for question in ("**Means**", "**Confirm**", "**Helps**"):
        assert question in section[1], f"{alert['alert']} does not say: {question}"
