"""The document of the API names the routes that there are, and no others."""

from __future__ import annotations

import re
from typing import Any

import pytest
from starlette.routing import Route

from master.core.admin import Wish
from master.web.api import make_app
from master.web.openapi import DOCUMENT

PAGE = {"/", "/page.css", "/page.js", "/parts.js", "/table.js", "/charts.js", "/questions.js", "/queue.js", "/cache.js"}


async def test_each_route_is_in_the_document_and_no_other(site: Any) -> None:
    async with site() as here:
        routes = set()
        for route in make_app(here.web.desk, here.web.feed).routes:
            assert isinstance(route, Route)
            path = route.path.replace(":path}", "}")
            paths = [path.replace("{state}", state) for state in Wish] if "{state}" in path else [path]
            routes |= {(each, method) for each in paths for method in route.methods or () if method != "HEAD"}
    documented = {(path, method.upper()) for path, item in DOCUMENT["paths"].items() for method in item}
    assert documented == {(path, method) for path, method in routes if path not in PAGE}


def test_each_reference_leads_somewhere() -> None:
    names = set(re.findall(r"#/components/schemas/(\w+)", str(DOCUMENT)))
    assert names == set(DOCUMENT["components"]["schemas"])


@pytest.mark.parametrize(
    ("path", "schema"),
    [
        ("backends", "Backends"),
        ("explain", "Explanation"),
        ("answers", "Answers"),
        ("log", "Log"),
        ("config", "Config"),
    ],
)
async def test_an_answer_has_the_fields_of_its_schema(site: Any, path: str, schema: str) -> None:
    async with site("b1", "b2") as here:
        here.report("b1")
        got = (await here.http.get(f"/api/v1/{path}")).json()
        known = DOCUMENT["components"]["schemas"][schema]
        assert list(got) == known["required"] == list(known["properties"])
        for row in got.get("backends", []):
            items = known["properties"]["backends"]["items"]
            fields = DOCUMENT["components"]["schemas"]["Backend"] if "$ref" in items else items
            assert list(row) == fields["required"]
