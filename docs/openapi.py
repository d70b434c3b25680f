"""Write gavel/web/openapi.json, the description of REST: run `python -m docs.openapi`.

It is made from the table of routes, and from the descriptors and comments of the protocol. A test checks that it is up
to date.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable, Mapping
from http import HTTPStatus
from importlib.resources import files
from pathlib import Path
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from grpc_tools import protoc  # type: ignore[import-untyped]

from gavel.client.calls import Method
from gavel.web.json_messages import is_map
from gavel.web.problems import MEDIA_TYPE
from gavel.web.rest import KEY, PREVIEW, SUBMIT
from gavel.web.routes import ROUTES, WHOLE, Route
from gavel.web.views import VIEWS, View
from protos.gavel.v1.plain import words_of

ROOT = Path(__file__).parents[1]
TARGET = ROOT / "gavel" / "web" / "openapi.json"
Json = dict[str, Any]
_NUMBERS: dict[Any, Json] = {
    FieldDescriptor.CPPTYPE_DOUBLE: {"type": "number"},
    FieldDescriptor.CPPTYPE_FLOAT: {"type": "number"},
    FieldDescriptor.CPPTYPE_BOOL: {"type": "boolean"},
    FieldDescriptor.CPPTYPE_STRING: {"type": "string"},
    FieldDescriptor.CPPTYPE_INT32: {"type": "integer"},
    FieldDescriptor.CPPTYPE_INT64: {"type": "integer"},
    FieldDescriptor.CPPTYPE_UINT32: {"type": "integer", "minimum": 0},
    FieldDescriptor.CPPTYPE_UINT64: {"type": "integer", "minimum": 0},
}
_WELL_KNOWN: dict[str, Json] = {
    "google.protobuf.Timestamp": {"type": "string", "format": "date-time"},
    "google.protobuf.Struct": {"type": "object"},
}


def comments() -> dict[str, str]:
    """Return the comments of the protocol, by the full name of what they describe."""
    protos = sorted(path.relative_to(ROOT).as_posix() for path in ROOT.glob("protos/gavel/v1/*.proto"))
    with tempfile.TemporaryDirectory() as folder:
        target = f"{folder}/descriptors"
        includes = [f"-I{ROOT}", f"-I{files('grpc_tools') / '_proto'}"]
        arguments = ["protoc", *includes, "--include_source_info", f"--descriptor_set_out={target}", *protos]
        if protoc.main(arguments):
            raise SystemExit("protoc failed")
        described = FileDescriptorSet.FromString(Path(target).read_bytes())
    texts: dict[str, str] = {}
    for file in described.file:
        for location in file.source_code_info.location:
            if text := " ".join((location.leading_comments + location.trailing_comments).split()):
                texts[_name_at(file, location.path)] = text
    return texts


def _name_at(message: Any, path: Iterable[int]) -> str:
    """Return the full name of the thing at a path of field numbers and indices within a file."""
    names, steps = [message.package], iter(path)
    for number in steps:
        field = message.DESCRIPTOR.fields_by_number[number]
        message = getattr(message, field.name)
        if not field.is_repeated:
            return ""
        message = message[next(steps)]
        names.append(message.name)
    return ".".join(names)


class Description:
    """The document, which is filled route by route."""

    def __init__(self) -> None:
        self._comments = comments()
        self._schemas: dict[str, Json] = {"Problem": _PROBLEM}

    def document(self) -> Json:
        """Return the whole document."""
        paths: dict[str, Json] = {}
        for route in ROUTES:
            paths.setdefault(route.path, {})[route.verb.lower()] = self._operation(route)
        for view in VIEWS:
            paths.setdefault(view.path, {})[view.verb.lower()] = _view_operation(view)
        return {
            "openapi": "3.1.0",
            "info": {"title": "Gavel", "version": "1", "description": _INTRODUCTION},
            "paths": dict(sorted(paths.items())),
            "components": {
                "schemas": dict(sorted(self._schemas.items())),
                "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            },
            "security": [{"token": []}],
        }

    def _operation(self, route: Route) -> Json:
        method: Method[Any] = Method(route.method, lambda reply: reply)
        service, name = route.method.split("/")
        request, reply = method.request_type.DESCRIPTOR, method.reply_type.DESCRIPTOR
        operation: Json = {
            "operationId": name + "".join(word.title() for word in route.values.values()),
            "summary": self._comments[f"gavel.v1.{service}.{name}"],
            "tags": [service],
            "responses": {
                "200": {"description": "The answer.", "content": _json(self._reference(reply))},
                "default": _PROBLEM_RESPONSE,
            },
        }
        if parameters := self._parameters(route, request):
            operation["parameters"] = parameters
        if route.body:
            operation["requestBody"] = self._body(route, request)
        return operation

    def _parameters(self, route: Route, request: Any) -> list[Json]:
        fields: dict[str, Any] = {field.name: field for field in request.fields}
        parameters = [
            {"name": name, "in": "path", "required": True, **self._described(fields[name])}
            for name in route.variables
        ]
        if not route.changes:
            inside = fields.pop(route.query).message_type.fields if route.query else ()
            wanted = [*inside, *(field for name, field in fields.items() if name not in route.variables)]
            parameters += [{"name": field.name, "in": "query", **self._described(field)} for field in wanted]
        if route.method == SUBMIT:
            text = "A repeated call with the same key returns the same jobs. Browsers must send one."
            parameters.append(
                {"name": KEY, "in": "header", "schema": {"type": "string"}, "description": text}
            )
        return parameters

    def _body(self, route: Route, request: Any) -> Json:
        kind = request if route.body == WHOLE else request.fields_by_name[route.body].message_type
        content = _json(self._reference(kind))
        if route.method in (SUBMIT, PREVIEW):
            content["application/yaml"] = {"schema": {"type": "string", "description": "A job file."}}
        return {"required": not route.is_body_optional, "content": content}

    def _described(self, field: FieldDescriptor) -> Json:
        return {"schema": self._schema(field), "description": self._comments.get(field.full_name, "")}

    def _reference(self, kind: Any) -> Json:
        """Return a reference to the schema of a message, which is added to the document."""
        if kind.full_name in _WELL_KNOWN:
            return _WELL_KNOWN[kind.full_name]
        name = kind.full_name.removeprefix("gavel.v1.")
        if name not in self._schemas:
            # Named before its fields are: messages may contain each other.
            schema = self._schemas[name] = {"type": "object"}
            if text := self._comments.get(kind.full_name):
                schema["description"] = text
            schema["properties"] = {field.name: self._property(field) for field in kind.fields}
        return {"$ref": f"#/components/schemas/{name}"}

    def _property(self, field: FieldDescriptor) -> Json:
        text = self._comments.get(field.full_name, "")
        return {**self._schema(field), **({"description": text} if text else {})}

    def _schema(self, field: FieldDescriptor) -> Json:
        if is_map(field):
            value: Any = field.message_type
            return {"type": "object", "additionalProperties": self._single(value.fields_by_name["value"])}
        schema = self._single(field)
        return {"type": "array", "items": schema} if field.is_repeated else schema

    def _single(self, field: FieldDescriptor) -> Json:
        if field.enum_type is not None:
            return {"type": "string", "enum": list(words_of(field.enum_type).values())}
        if field.message_type is not None:
            return self._reference(field.message_type)
        return dict(_NUMBERS[field.cpp_type])


def _view_operation(view: View) -> Json:
    parameters = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in view.variables
    ]
    parameters += [
        {"name": name, "in": "query", "schema": {"type": "string"}, "description": text}
        for name, text in view.parameters.items()
    ]
    operation: Json = {"summary": view.summary, "tags": ["Web"]}
    if parameters:
        operation["parameters"] = parameters
    answer = {"description": "The answer.", "content": {view.media_type: {}}}
    return {**operation, "responses": {"200": answer, "default": _PROBLEM_RESPONSE}}


def _json(schema: Mapping[str, Any]) -> Json:
    return {"application/json": {"schema": schema}}


_INTRODUCTION = (
    "REST over the protocol of the scheduler: protos/gavel/v1/*.proto describes everything in full. Fields have the "
    "names of the protocol, enums are words in lower case, times are RFC 3339 in UTC. A field that the protocol "
    "declares optional, or that is a message, may be absent. Errors are application/problem+json (RFC 9457)."
)
_PROBLEM: Json = {
    "type": "object",
    "description": "An error: RFC 9457.",
    "required": ["type", "title", "status", "reason", "detail"],
    "properties": {
        "type": {"type": "string", "description": "urn:gavel: and the reason."},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "reason": {"type": "string", "description": "A stable code for programs."},
        "detail": {"type": "string", "description": "What is wrong and what to do, for users."},
        "field": {"type": "string", "description": "The field, parameter or header that is wrong."},
        "line": {"type": "integer", "description": "The line of the job file."},
        "retry_s": {"type": "number", "description": "A later try may succeed, after so many seconds."},
    },
}
_PROBLEM_RESPONSE: Json = {
    "description": f"An error, such as {int(HTTPStatus.BAD_REQUEST)}.",
    "content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}},
}


def text() -> str:
    """Return the document as text."""
    return json.dumps(Description().document(), indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    TARGET.write_text(text())
