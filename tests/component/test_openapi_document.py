"""GET /openapi.json and GET /docs: every path of the table, exactly, and a page that needs nothing else."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import pytest
from guide_api import ROUTES_WITH_THE_GUIDES
from scripted_gateway import MODEL, Rig, rig, says

from relevo.gateway.http.auth import ApiKeys
from relevo.gateway.http.errors import HTTP_STATUSES
from relevo.gateway.http.route import Route
from relevo.gateway.openapi.document import MEANINGS, openapi_document, statuses
from relevo.gateway.routes import ROUTES

DOCUMENT = openapi_document(ROUTES)


async def fetched(r: Rig) -> Any:
    return (await r.get("/openapi.json")).json()


async def test_it_has_every_route_and_itself() -> None:
    """Red if a list of paths is kept beside the table."""
    told = await fetched(rig())
    operations = {(method.upper(), path) for path, methods in told["paths"].items() for method in methods}
    assert operations == {
        *((route.method, re.sub(r"\*$", "{rest}", route.path)) for route in ROUTES),
        *(("GET", "/openapi.json"), ("GET", "/docs")),
    }
    assert told["openapi"] == "3.1.1"


def test_an_api_that_is_added_is_in_it_without_a_word_of_its_own() -> None:
    told = openapi_document(ROUTES_WITH_THE_GUIDES)
    say = told["paths"]["/tiny/say"]["post"]
    schema = told["components"]["schemas"][
        say["responses"]["400"]["content"]["application/json"]["schema"]["$ref"][21:]
    ]
    assert schema["required"] == ["oops", "id"], "its errors are as its ErrorFormat writes them"


def test_every_reference_leads_somewhere_and_every_name_is_one() -> None:
    text = msgspec.json.encode(DOCUMENT).decode()
    references = set(re.findall(r'"\$ref":"#/components/schemas/([^"]+)"', text))
    assert references == set(DOCUMENT["components"]["schemas"])
    ids = [each["operationId"] for methods in DOCUMENT["paths"].values() for each in methods.values()]
    assert len(set(ids)) == len(ids)


def test_every_status_that_an_error_may_have_is_told_of_some_path() -> None:
    told = {status for route in ROUTES for status in statuses(route)} | {405}  # a method that is not in the document
    assert 529 in told, "an API's own statuses are asked of its ErrorFormat"
    assert {listed.status for listed in HTTP_STATUSES.values()} <= told
    assert told - {405} <= set(MEANINGS)


@pytest.mark.parametrize("route", [each for each in ROUTES if each.request], ids=lambda route: route.path)
def test_bodies_are_those_that_are_read(route: Route) -> None:
    """Red if a member is missing, or if null, which stands for 'not given', were told to be wrong."""
    operation = DOCUMENT["paths"][route.path.replace("*", "{rest}")]["post"]
    name = operation["requestBody"]["content"]["application/json"]["schema"]["$ref"].rpartition("/")[2]
    schema = DOCUMENT["components"]["schemas"][name]
    assert route.request is not None
    assert set(schema["properties"]) == set(route.request.__struct_encode_fields__)
    for member, about in schema["properties"].items():
        takes_null = not about or {"type": "null"} in about.get("anyOf", ())
        assert takes_null or member in schema["required"], member
    answers = operation["responses"][str(route.statuses[0])]["content"]
    assert ("text/event-stream" in answers) == ("stream" in schema["properties"])


def test_of_two_routes_at_a_path_both_answers_are_told() -> None:
    """Red if the one that a header chooses hid the other."""
    show = DOCUMENT["paths"]["/v1/models/{rest}"]["get"]
    kinds = show["responses"]["404"]["content"]["application/json"]["schema"]["anyOf"]
    assert [each["$ref"].rpartition("/")[2] for each in kinds] == ["OpenAIError", "AnthropicError"]
    assert {each["in"] for each in show["parameters"]} >= {"path", "header"}


async def test_keys_are_asked_for_where_the_document_says_so() -> None:
    """Red if the document and the gate know different paths; the two pages themselves are open, as vLLM's are."""
    r = rig(says("x"), api_keys=ApiKeys.of(["secret"]))
    told = await fetched(r)
    async with r.client() as client:
        for path, methods in told["paths"].items():
            for method, operation in methods.items():
                answer = await client.request(method, path.replace("{rest}", "x"), json={"model": MODEL})
                assert (answer.status_code == 401) == bool(operation["security"]), (method, path)
                assert str(answer.status_code) in operation["responses"], (method, path)
    assert not told["paths"]["/docs"]["get"]["security"]


async def test_the_page_needs_no_script_and_nothing_from_elsewhere() -> None:
    """Red if the page could not be shown offline, or under the policy that it sends."""
    answer = await rig().get("/docs")
    page, policy = answer.text, answer.headers["content-security-policy"]
    assert answer.headers["content-type"].startswith("text/html")
    assert "<script" not in page and not re.search(r"(?:src|href)=[\"']?(?:https?:)?//", page)
    assert not re.search(r"\son\w+=|\sstyle=", page) and "color-scheme: light dark" in page
    assert re.fullmatch(r"default-src 'none'; style-src 'sha256-[\w+/=]+'; .*", policy)
    for path in DOCUMENT["paths"]:
        assert f"{path}</code>" in page
    for name in DOCUMENT["components"]["schemas"]:
        assert f'id="{name}"' in page
