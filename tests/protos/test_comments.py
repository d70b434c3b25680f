"""Whoever programs against the protocol reads the .proto files: nothing in them goes unexplained."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from google.protobuf import descriptor_pb2 as pb

ROOT = Path(__file__).parents[2]
SOURCES = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "protos/gavel/v1").glob("*.proto"))
Place = tuple[int, ...]

# numbers of fields in descriptor.proto, which make up the paths of SourceCodeInfo
FILE_MESSAGES, FILE_ENUMS, FILE_SERVICES = 4, 5, 6
MESSAGE_FIELDS, MESSAGE_MESSAGES, MESSAGE_ENUMS = 2, 3, 4
ENUM_VALUES, SERVICE_METHODS = 2, 2


def described(source: str, folder: Path) -> pb.FileDescriptorProto:
    """What the compiler knows of a .proto file, comments included."""
    out = folder / "described"
    command = [sys.executable, "-m", "grpc_tools.protoc", "-I", ".", "--include_source_info"]
    subprocess.run([*command, f"--descriptor_set_out={out}", source], cwd=ROOT, check=True)
    return pb.FileDescriptorSet.FromString(out.read_bytes()).file[0]


def of_enum(enum: pb.EnumDescriptorProto, name: str, at: Place) -> Iterator[tuple[str, Place]]:
    """An enum and its values."""
    yield name, at
    for index, value in enumerate(enum.value):
        yield f"{name}.{value.name}", (*at, ENUM_VALUES, index)


def of_message(message: pb.DescriptorProto, name: str, at: Place) -> Iterator[tuple[str, Place]]:
    """A message, its fields, and what is declared inside. Entries of maps are the compiler's own."""
    if message.options.map_entry:
        return
    yield name, at
    for index, field in enumerate(message.field):
        yield f"{name}.{field.name}", (*at, MESSAGE_FIELDS, index)
    for index, inner in enumerate(message.nested_type):
        yield from of_message(inner, f"{name}.{inner.name}", (*at, MESSAGE_MESSAGES, index))
    for index, enum in enumerate(message.enum_type):
        yield from of_enum(enum, f"{name}.{enum.name}", (*at, MESSAGE_ENUMS, index))


def declared(file: pb.FileDescriptorProto) -> Iterator[tuple[str, Place]]:
    """Everything that has a name in a file, and its place there."""
    for index, message in enumerate(file.message_type):
        yield from of_message(message, message.name, (FILE_MESSAGES, index))
    for index, enum in enumerate(file.enum_type):
        yield from of_enum(enum, enum.name, (FILE_ENUMS, index))
    for index, service in enumerate(file.service):
        yield service.name, (FILE_SERVICES, index)
        for number, method in enumerate(service.method):
            yield f"{service.name}.{method.name}", (FILE_SERVICES, index, SERVICE_METHODS, number)


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: Path(source).stem)
def test_everything_has_a_comment(source, tmp_path):
    """Every service, call, message, field and enum value says what its user has to know, above it or beside it."""
    file = described(source, tmp_path)
    explained = {
        tuple(place.path)
        for place in file.source_code_info.location
        if (place.leading_comments or place.trailing_comments).strip()
    }
    assert [name for name, at in declared(file) if at not in explained] == []
