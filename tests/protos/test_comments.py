"""The .proto files document the protocol for programmers: everything in them has a comment."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from google.protobuf import descriptor_pb2 as pb

ROOT = Path(__file__).parents[2]
SOURCES = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "protos/gavel/v1").glob("*.proto"))
Place = tuple[int, ...]

# Numbers of fields in descriptor.proto; paths of SourceCodeInfo are made of them.
FILE_MESSAGES, FILE_ENUMS, FILE_SERVICES = 4, 5, 6
MESSAGE_FIELDS, MESSAGE_MESSAGES, MESSAGE_ENUMS = 2, 3, 4
ENUM_VALUES, SERVICE_METHODS = 2, 2


def described(source: str, folder: Path) -> pb.FileDescriptorProto:
    """Compile a .proto file to its description, with comments."""
    out = folder / "described"
    command = [sys.executable, "-m", "grpc_tools.protoc", "-I", ".", "--include_source_info"]
    subprocess.run([*command, f"--descriptor_set_out={out}", source], cwd=ROOT, check=True)
    return pb.FileDescriptorSet.FromString(out.read_bytes()).file[0]


def of_enum(enum: pb.EnumDescriptorProto, name: str, at: Place) -> Iterator[tuple[str, Place]]:
    """Yield an enum and its values, with their places."""
    yield name, at
    for index, value in enumerate(enum.value):
        yield f"{name}.{value.name}", (*at, ENUM_VALUES, index)


def of_message(message: pb.DescriptorProto, name: str, at: Place) -> Iterator[tuple[str, Place]]:
    """Yield a message, its fields, and its inner types; entries of maps are the compiler's and left out."""
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
    """Yield everything that has a name in a file, with its place."""
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
    """Every service, call, message, field and enum value has a comment above it or beside it."""
    file = described(source, tmp_path)
    explained = {
        tuple(place.path)
        for place in file.source_code_info.location
        if (place.leading_comments or place.trailing_comments).strip()
    }
    assert [name for name, at in declared(file) if at not in explained] == []
