"""The console's page as a browser gets it: who gets it, under which policy, whole, and without what the policy forbids.

Red when a program that asks for / is answered with HTML, when a file that the page names is not served, and when markup
or script turns up where only text may be.
"""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest
from scripted_gateway import MODEL, rig

from relevo import __version__
from relevo.gateway.console.page_files import CONTENT_SECURITY_POLICY, page, page_files
from relevo.gateway.console.page_routes import prefers_html
from relevo.gateway.http.auth import ApiKeys

BROWSER = "text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,image/webp,*/*;q=0.8"
JSON_OF_ROOT = {"name": "relevo", "version": __version__, "models": [MODEL, "alias/of-tiny"]}
KEYS = ApiKeys.of(["sk-one"])


@pytest.mark.parametrize(
    ("accept", "is_html"),
    [
        (BROWSER, True),
        ("text/html", True),
        ("TEXT/HTML", True),
        ("text/*", True),
        ("text/html;q=0.5, */*;q=0.1", True),
        ("application/json;q=0.2, text/html", True),
        ("", False),
        ("*/*", False),
        ("application/json", False),
        ("application/json, text/plain, */*", False),
        ("application/json, text/html", False),
        ("text/html;q=0", False),
        ("text/html;q=nan", False),
        ("text/html;q=much, */*", False),
        ("text/html;q=0.3, application/json;q=0.9", False),
        ("text/html;level=1;q=0.3, application/*;q=0.4", False),
        (",;,=;q", False),
    ],
)
def test_html_is_for_those_who_rank_it_above_json(accept: str, is_html: bool) -> None:
    assert prefers_html([accept]) is is_html


def test_an_accept_header_in_several_lines_is_read_whole() -> None:
    assert prefers_html(["application/json;q=0.1", "text/html"])
    assert not prefers_html(["text/html;q=0.1", "application/json"])


async def test_programs_are_told_what_they_always_were() -> None:
    for headers in ({}, {"accept": "*/*"}, {"accept": "application/json"}):
        answer = await rig().get("/", **headers)
        assert answer.json() == JSON_OF_ROOT
        assert answer.headers["content-type"] == "application/json" and answer.headers["vary"] == "Accept"


@pytest.mark.parametrize("path", ["/", "/console/main.js", "/console/page.css", "/console/icon.svg"])
async def test_browsers_get_the_page_under_a_strict_policy(path: str) -> None:
    answer = await rig().get(path, accept=BROWSER)
    assert answer.status_code == 200
    assert answer.headers["content-security-policy"] == CONTENT_SECURITY_POLICY
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["referrer-policy"] == "no-referrer"
    assert answer.headers["cache-control"] == "no-cache"
    kind = {"/": "text/html", "s": "text/javascript", "css": "text/css", "svg": "image/svg+xml"}
    assert answer.headers["content-type"].startswith(kind.get(path) or kind.get(path.rpartition(".")[2], kind["s"]))


def test_the_policy_lets_nothing_in_from_elsewhere() -> None:
    directives = dict(part.split(" ", 1) for part in CONTENT_SECURITY_POLICY.split("; "))
    assert "unsafe" not in CONTENT_SECURITY_POLICY and "*" not in CONTENT_SECURITY_POLICY
    assert "data:" not in CONTENT_SECURITY_POLICY and "http" not in CONTENT_SECURITY_POLICY
    assert directives["default-src"] == directives["connect-src"] == "'self'"
    assert directives["frame-ancestors"] == directives["object-src"] == directives["base-uri"] == "'none'"
    assert directives["require-trusted-types-for"] == "'script'"


async def test_what_a_browser_has_is_not_sent_again() -> None:
    first = await rig().get("/console/main.js")
    again = await rig().get("/console/main.js", **{"if-none-match": f'W/{first.headers["etag"]}, "other"'})
    assert again.status_code == 304 and not again.content and again.headers["etag"] == first.headers["etag"]
    changed = await rig().get("/console/main.js", **{"if-none-match": '"other"'})
    assert changed.status_code == 200 and changed.content == first.content


async def test_head_is_answered_for_the_page_and_its_files() -> None:
    async with rig().client() as client:
        for path in ("/", "/console/main.js"):
            assert (await client.head(path, headers={"accept": BROWSER})).status_code == 200


@pytest.mark.parametrize(
    "name", ["", "nothing.js", "index.html", "page/main.js", "../state.py", "%2e%2e/state.py", "MAIN.JS"]
)
async def test_nothing_else_is_below_console(name: str) -> None:
    """Red when a path is joined to a folder."""
    answer = await rig().get(f"/console/{name}")
    assert answer.status_code in (400, 404) and "error" in answer.json()


async def test_with_keys_the_page_is_open_and_says_only_that_it_needs_one() -> None:
    """Red when a model's name, or anything else of a server, is written into the page."""
    r = rig(api_keys=KEYS)
    with_keys = await r.get("/", accept=BROWSER)
    without = await rig().get("/", accept=BROWSER)
    assert with_keys.status_code == 200 and MODEL not in with_keys.text and __version__ not in with_keys.text
    assert with_keys.text == without.text.replace('data-needs-key="no"', 'data-needs-key="yes"')
    assert with_keys.headers["etag"] != without.headers["etag"]
    assert (await r.get("/v1/state")).status_code == 401


# ---- what is in the files --------------------------------------------------------------------------------------------


class Markup(HTMLParser):
    """Collects what a policy would forbid, and which files are named."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.forbidden: list[str] = []
        self.named: set[str] = set()
        self._script_without_source = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.forbidden += [f"{tag} {name}" for name in given if name.startswith("on") or name == "style"]
        self.forbidden += [tag] if tag in ("style", "base", "iframe", "object", "embed") else []
        self.forbidden += ["script without src"] if tag == "script" and "src" not in given else []
        for name in ("src", "href"):
            value = given.get(name) or ""
            if re.match(r"(?:[a-z]+:|//|/)", value):
                self.forbidden.append(f"{tag} {value}")
            if value.startswith("console/"):
                self.named.add(value.removeprefix("console/"))


def imports(name: str) -> set[str]:
    text = page_files()[name].body.decode()
    return set(re.findall(r'(?:from|import) "\./([^"]+)"', text))


def test_every_file_that_the_page_names_is_served_and_every_served_one_is_named() -> None:
    markup = Markup(page(needs_key=False).body.decode())
    reached, unread = set(markup.named), list(markup.named)
    while unread:
        name = unread.pop()
        assert name in page_files(), f"the page names {name}"
        found = imports(name) if name.endswith(".js") else set()
        unread += found - reached
        reached |= found
    assert reached == set(page_files())


def test_the_markup_has_no_script_style_or_handler_of_its_own() -> None:
    assert not Markup(page(needs_key=False).body.decode()).forbidden


FORBIDDEN_IN_SCRIPTS = (
    r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|createContextualFragment|DOMParser|setHTML",
    r"\beval\b|new Function|setTimeout\(\s*[\"'`]|setInterval\(\s*[\"'`]",
    r"\bimport\(|from \"(?!\./)|importScripts",
    r"https?://(?!www\.w3\.org/)",
    r"document\.cookie|localStorage\.setItem\((?!STORED)",
    r"setAttribute\(\s*[\"']style",
)


@pytest.mark.parametrize("name", sorted(name for name in page_files() if name.endswith(".js")))
def test_scripts_set_text_and_nothing_that_is_read_as_markup_or_code(name: str) -> None:
    text = page_files()[name].body.decode()
    found = [match for pattern in FORBIDDEN_IN_SCRIPTS for match in re.findall(pattern, text)]
    assert not found, f"{name}: {found}"


@pytest.mark.parametrize("name", sorted(page_files()))
def test_files_of_the_page_stay_small_and_load_nothing_from_elsewhere(name: str) -> None:
    text = page_files()[name].body.decode()
    assert text.count("\n") < 500
    assert not re.search(r"@import|url\(", text)


def test_every_part_that_a_script_looks_up_is_in_the_markup() -> None:
    """Red when an id is renamed on one side only."""
    ids = set(re.findall(r' id="([^"]+)"', page(needs_key=False).body.decode()))
    asked = {
        found
        for name, each in page_files().items()
        if name.endswith(".js")
        for found in re.findall(r'byId\("([^"]+)"\)', each.body.decode())
    }
    assert asked - {"told-title"} <= ids


def test_tables_have_captions_and_fields_have_labels() -> None:
    markup = page(needs_key=False).body.decode()
    assert markup.count("<table") == markup.count("<caption")
    fields = re.findall(r'<(?:input|select|textarea) id="([^"]+)"', markup)
    assert fields and all(f'for="{field}"' in markup for field in fields)
