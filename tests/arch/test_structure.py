"""Files and functions stay small, what one thing says of another is there, and no message or seam lacks its other half.

Limits leave a little room above what is; raise one only with a reason.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from relevo.wire import messages as wire

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "relevo"
DOCS = ROOT / "docs"
MAX_FILE_LINES, LONG_FILE_LINES, SHORT_FILE_LINES = 500, 400, 200
MAX_BODY_LINES, LONG_BODY_LINES = 80, 40
PAGES = [*DOCS.rglob("*.md"), *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md"))]
FOREIGN = {"docs/gguf.md"}  # of ggml


@cache
def trees() -> dict[Path, ast.Module]:
    return {path: ast.parse(path.read_text(encoding="utf-8")) for path in sorted(SOURCE.rglob("*.py"))}


def nodes(kind: type[ast.AST]) -> Iterator[tuple[Path, ast.AST]]:
    for path, tree in trees().items():
        yield from ((path, node) for node in ast.walk(tree) if isinstance(node, kind))


# ---- sizes -----------------------------------------------------------------------------------------------------------


def test_files_can_be_held_in_the_head() -> None:
    """Red when a file grows beyond what one reads at once, or many grow a little."""
    num_lines = {path: path.read_text(encoding="utf-8").count("\n") for path in trees()}
    too_long = {str(path.relative_to(SOURCE)): count for path, count in num_lines.items() if count > MAX_FILE_LINES}
    assert not too_long, f"split them by the state that each part owns: {too_long}"
    assert sum(count > LONG_FILE_LINES for count in num_lines.values()) <= 0.01 * len(num_lines)
    assert sum(count <= SHORT_FILE_LINES for count in num_lines.values()) >= 0.8 * len(num_lines)


def test_functions_can_be_held_in_the_head() -> None:
    """Of a body; signatures of commands list their options."""
    num_lines: dict[str, int] = {}
    for kind in (ast.FunctionDef, ast.AsyncFunctionDef):
        for path, node in nodes(kind):
            assert isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            body = node.body[1:] if ast.get_docstring(node) is not None else node.body
            name = f"{path.relative_to(SOURCE)}:{node.lineno} {node.name}"
            num_lines[name] = (node.end_lineno or 0) - body[0].lineno + 1 if body else 0
    too_long = {name: count for name, count in num_lines.items() if count > MAX_BODY_LINES}
    assert not too_long, f"take out what has a name of its own: {too_long}"
    assert sum(count > LONG_BODY_LINES for count in num_lines.values()) <= 0.005 * len(num_lines)


# ---- references ------------------------------------------------------------------------------------------------------


def anchors(page: Path) -> set[str]:
    """Of a page's headings, as GitHub makes them."""
    found = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-") for heading in found}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_of_a_page_lead_somewhere(page: Path) -> None:
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    lost = []
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        other = (page.parent / name).resolve() if name else page
        is_there = other.exists() and (not anchor or other.suffix != ".md" or anchor in anchors(other))
        lost += [] if is_there else [target]
    assert not lost, f"{page.name} points to {lost}"


def test_pages_and_sections_that_the_source_names_are_there() -> None:
    """`docs/page.md`, and `docs/page.md, "Section"` for one. Red when a page is renamed under its readers."""
    lost = []
    for path in trees():
        text = re.sub(r"\s+", " ", path.read_text(encoding="utf-8"))
        for name, section in re.findall(r'\b(docs/[\w/.-]+\.md)(?:, "([^"]+)")?', text):
            page = ROOT / name
            if name in FOREIGN:
                continue
            is_there = page.exists() and (not section or f"# {section}\n" in page.read_text(encoding="utf-8"))
            lost += [] if is_there else [f"{path.relative_to(SOURCE)}: {name} {section}"]
        lost += [
            f"{path.relative_to(SOURCE)}: {told}" for told in re.findall(r"docs/[\w/.-]+\.md, (?:section )?\d", text)
        ]
    assert not lost, "sections are named by their headings, pages by their paths"


# ---- messages --------------------------------------------------------------------------------------------------------


def message_names() -> list[str]:
    return sorted(kind.__name__ for kind in wire.Message.__subclasses__())


def names_at_wire(node: ast.AST) -> Iterator[str]:
    """`wire.Name` or `Name`, also in alternatives and tuples."""
    for each in ast.walk(node):
        if (
            isinstance(each, ast.Attribute)
            and isinstance(each.value, ast.Name)
            and each.value.id in ("wire", "messages")
        ):
            yield each.attr
        elif isinstance(each, ast.Name):
            yield each.id


@cache
def sent_and_received() -> tuple[set[str], set[str]]:
    """Names that the source makes, and names that it tells apart."""
    sent: set[str] = set()
    received: set[str] = set()
    for path, tree in trees().items():
        if "messages" not in path.read_text(encoding="utf-8"):
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Call):
                sent |= set(names_at_wire(node.func))
                if isinstance(node.func, ast.Name) and node.func.id == "isinstance":
                    received |= set(names_at_wire(node.args[1]))
            elif isinstance(node, ast.MatchClass):
                received |= set(names_at_wire(node.cls))
    return sent, received


@pytest.mark.parametrize("name", message_names())
def test_a_message_has_a_sender_and_a_receiver(name: str) -> None:
    """Red for words that are never said or never heard."""
    sent, received = sent_and_received()
    assert name in sent, f"nothing sends {name}"
    assert name in received, f"nothing tells {name} from other messages"


# ---- seams -----------------------------------------------------------------------------------------------------------

SUITES = {  # by seam: its implementations, each with a suite that holds it to the promise and how that names it
    "core.ports.KVTransport": {
        "ShmTransport": ("contract/test_transport_contract.py", '"shm"'),
        "TcpTransport": ("contract/test_transport_contract.py", '"tcp"'),
        "FakeTransport": ("contract/test_transport_contract.py", '"fake"'),
        "SimTransport": ("contract/test_transport_contract.py", '"sim"'),
    },
    "core.ports.ModelRunner": {
        "FakeRunner": ("contract/test_runner_fake.py", "FakeRunner"),
        "LocalRunner": ("golden/test_runner_decoder.py", "LocalRunner"),
        "ModelledRunner": ("", ""),  # computes nothing: there is no KV that two ways could agree on
    },
    "cluster.launchers.seats.Launcher": {
        "LocalLauncher": ("component/test_launchers.py", "LocalLauncher"),
        "RayLauncher": ("component/test_launchers.py", "RayLauncher"),
    },
    "wire.gateway_links.GatewayLinks": {
        "WireServer": ("contract/test_gateway_links.py", "WireServer"),
        "InProcessLinks": ("contract/test_gateway_links.py", "InProcessLinks"),
    },
}


@pytest.mark.parametrize("seam", SUITES)
def test_every_implementation_of_a_seam_is_held_to_its_promise(seam: str) -> None:
    """Red for one that says in its docstring that it implements the seam and that no suite runs on."""
    found = {
        node.name
        for _, node in nodes(ast.ClassDef)
        if isinstance(node, ast.ClassDef) and f"Implements {seam}" in (ast.get_docstring(node) or "")
    }
    assert found == set(SUITES[seam])
    for name, (suite, words) in SUITES[seam].items():
        if suite:
            assert words in (ROOT / "tests" / suite).read_text(encoding="utf-8"), f"{suite} does not run on {name}"


# ---- words -----------------------------------------------------------------------------------------------------------


def test_sentences_have_a_subject() -> None:
    """A request waits, a worker holds, a client reads: red for whoever, nobody, somebody and everybody."""
    vague = re.compile(r"\b(whoever|whomever|whosever|nobody|somebody|everybody)\b", re.IGNORECASE)
    found = [
        f"{path.relative_to(SOURCE)}:{number} {line.strip()}"
        for path in trees()
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        if vague.search(line)
    ]
    assert not found


# ---- tests -----------------------------------------------------------------------------------------------------------


def test_test_modules_have_names_of_their_own() -> None:
    """Folders of tests are no packages, so two modules of one name are one to Python: red before a collection fails."""
    names = [path.name for path in (ROOT / "tests").rglob("*.py") if path.name != "conftest.py"]
    assert len(names) == len(set(names)), sorted({name for name in names if names.count(name) > 1})
