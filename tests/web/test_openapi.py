"""The description of REST, which is made from the table and the protocol."""

from __future__ import annotations

import json

from docs.openapi import TARGET, text
from gavel.web.routes import ROUTES
from gavel.web.views import VIEWS


def test_the_description_is_up_to_date() -> None:
    """`python -m docs.openapi` changes nothing."""
    assert text() == TARGET.read_text(), "run `python -m docs.openapi`"


def test_every_address_is_described() -> None:
    """Each route and view has a summary; each reference leads to a schema; operations have names of their own."""
    document = json.loads(TARGET.read_text())
    described = {(verb.upper(), path) for path, verbs in document["paths"].items() for verb in verbs}
    served = {(route.verb, route.path) for route in ROUTES} | {(view.verb, view.path) for view in VIEWS}
    assert described == served
    operations = [operation for verbs in document["paths"].values() for operation in verbs.values()]
    assert all(operation["summary"] for operation in operations)
    names = [operation["operationId"] for operation in operations if "operationId" in operation]
    assert len(names) == len(set(names))
    for reference in set(TARGET.read_text().split('"$ref": "')[1:]):
        name = reference.partition('"')[0].removeprefix("#/components/schemas/")
        assert name in document["components"]["schemas"]
