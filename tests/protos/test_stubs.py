"""The compiled stubs beside the .proto files are up to date."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = sorted((ROOT / "protos/gavel/v1").glob("*.proto"))
STUBS = ("_pb2.py", "_pb2.pyi", "_pb2_grpc.py")


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """Compile all stubs into a temporary folder."""
    out = tmp_path_factory.mktemp("stubs")
    names = [str(path.relative_to(ROOT)) for path in SOURCES]
    command = [sys.executable, "-m", "grpc_tools.protoc", "-I", "."]
    outs = [f"--python_out={out}", f"--pyi_out={out}", f"--grpc_python_out={out}"]
    subprocess.run([*command, *outs, *names], cwd=ROOT, check=True)
    return out


@pytest.mark.parametrize("suffix", STUBS)
@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.stem)
def test_stubs_are_fresh(source, suffix, compiled):
    """Each stub in the repository is what the compiler makes of the .proto file; `make protos` writes it."""
    stub = source.with_name(source.stem + suffix)
    assert (compiled / stub.relative_to(ROOT)).read_text() == stub.read_text()


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.stem)
def test_every_number_is_used_once(source):
    """Field numbers are the wire format: none occurs twice in a message."""
    blocks: list[set[int]] = [set()]
    for line in source.read_text().splitlines():
        code = line.split("//")[0]
        if number := re.search(r"= (\d+);", code):
            assert int(number[1]) not in blocks[-1], line
            blocks[-1].add(int(number[1]))
        blocks += [set() for _ in range(code.count("{"))]
        for _ in range(code.count("}")):
            blocks.pop()
