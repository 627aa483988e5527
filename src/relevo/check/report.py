"""Results for people and programs: a table with the story of each failure, JSON, JUnit XML, the exit status."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any
from xml.etree import ElementTree

from rich.console import Group as Lines
from rich.table import Table
from rich.text import Text

from relevo.check.words import Check, Result, Status

_STYLES = {Status.PASSED: "green", Status.FAILED: "bold red", Status.ADVICE: "yellow", Status.SKIPPED: "dim"}
EXIT_FAILED = 1


def exit_status(results: Sequence[Result], *, strict: bool) -> int:
    """1 if a MUST was not met; `strict` counts a SHOULD too."""
    bad = {Status.FAILED, Status.ADVICE} if strict else {Status.FAILED}
    return EXIT_FAILED if any(result.status in bad for result in results) else 0


def summary(results: Sequence[Result]) -> str:
    counts = Counter(result.status for result in results)
    return ", ".join(f"{counts[status]} {status}" for status in Status)


# ---- for people ------------------------------------------------------------------------------------------------------


def catalogue_table(checks: Sequence[Check]) -> Table:
    """What `--list` prints."""
    table = Table("check", "level", "what is expected", "needs", "source", title=f"{len(checks)} checks")
    for one in checks:
        table.add_row(one.id, str(one.level), one.expects, ", ".join(map(str, one.needs)), one.source)
    return table


def result_table(results: Sequence[Result]) -> Table:
    table = Table("check", "result", "s", "what is expected, or why it was skipped")
    for result in results:
        told = result.reason if result.status is Status.SKIPPED else result.check.expects
        notes = "".join(f" ({note})" for note in result.notes)
        table.add_row(
            result.check.id,
            Text(result.status, style=_STYLES[result.status]),
            f"{result.duration_s:.1f}",
            Text(told + notes),  # as it is: a server's words are no markup
        )
    return table


def failure_stories(results: Sequence[Result]) -> Lines:
    """What was sent, what came back, what was expected and why it matters, with a curl to repeat it."""
    return Lines(*(_story(result) for result in results if result.status in (Status.FAILED, Status.ADVICE)))


def _story(result: Result) -> Text:
    one = result.check
    story = Text(f"\n{one.id} ({result.status})\n", style=_STYLES[result.status])
    story.append(f"  expected  {one.expects}\n", style="default")
    rows = [
        ("here", result.expected if result.expected != one.expects else ""),
        ("got", result.got),
        ("why", one.why),
        ("source", one.source),
        ("sent", result.sent),
        ("answer", result.answer),
        ("repeat", result.curl),
    ]
    for name, value in rows:
        if value:
            indented = value.replace("\n", "\n            ")
            story.append(f"  {name:<9} {indented}\n", style="default")
    return story


# ---- for programs ----------------------------------------------------------------------------------------------------


def to_json(results: Sequence[Result], about: dict[str, Any]) -> dict[str, Any]:
    """`about` names the server, versions and time of the run."""
    counts = Counter(result.status for result in results)
    return {
        **about,
        "summary": {str(status): counts[status] for status in Status},
        "results": [_result_json(result) for result in results],
    }


def _result_json(result: Result) -> dict[str, Any]:
    one = result.check
    told: dict[str, Any] = {
        "id": one.id,
        "group": str(one.group),
        "level": str(one.level),
        "status": str(result.status),
        "duration_s": round(result.duration_s, 3),
        "expects": one.expects,
        "why": one.why,
        "source": one.source,
        "needs": [need.name.lower() for need in one.needs],
        "notes": list(result.notes),
    }
    if result.status is Status.SKIPPED:
        told["reason"] = result.reason
    elif result.status is not Status.PASSED:
        told |= {
            "expected": result.expected,
            "sent": result.sent,
            "got": result.got,
            "answer": result.answer,
            "curl": result.curl,
        }
    return told


def to_junit(results: Sequence[Result], suite: str, *, strict: bool) -> bytes:
    """One test case per check. Advice is a failure only if `strict`, else it is told in `system-out`."""
    root = ElementTree.Element("testsuites")
    cases = ElementTree.SubElement(root, "testsuite", name=_xml(suite), tests=str(len(results)))
    num_failures = num_skipped = 0
    for result in results:
        case = ElementTree.SubElement(
            cases, "testcase", classname=str(result.check.group), name=result.check.id, time=f"{result.duration_s:.3f}"
        )
        if result.status is Status.SKIPPED:
            num_skipped += 1
            ElementTree.SubElement(case, "skipped", message=_xml(result.reason))
        elif result.status is Status.FAILED or (strict and result.status is Status.ADVICE):
            num_failures += 1
            failure = ElementTree.SubElement(case, "failure", message=_xml(result.got), type=str(result.check.level))
            failure.text = _xml(_story(result).plain)
        elif result.status is Status.ADVICE:
            ElementTree.SubElement(case, "system-out").text = _xml(_story(result).plain)
    cases.set("failures", str(num_failures))
    cases.set("skipped", str(num_skipped))
    document: bytes = ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)
    return document


def _xml(text: str) -> str:
    """Without the characters that XML 1.0 cannot say."""
    return "".join(c if c in "\t\n\r" or 0x20 <= ord(c) < 0xD800 or 0xE000 <= ord(c) < 0xFFFE or ord(c) > 0xFFFF
                   else "\ufffd" for c in text)  # fmt: skip
