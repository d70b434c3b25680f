"""Reading any file ends in jobs or in an error of one line, never in a traceback or a guess."""

import math
from dataclasses import fields
from pathlib import Path

import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from gavel.client.errors import InvalidJob
from gavel.client.jobs.file import parse_jobs
from gavel.client.jobs.spec import BY_NAME, JobSpec
from gavel.client.reading import spec_to_proto

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=20),
    st.sampled_from(
        ["1h", "2-8", "16GB", "0-9", "17:ended", "2030-01-01", "per_gpu", ".nan", "-1s", "9" * 400, "1e999"]
    ),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["min", "max", "job", "when", "A", ""]), inner, max_size=3)
    ),
    max_leaves=6,
)
JOBS = st.dictionaries(st.sampled_from([*BY_NAME, "gpu", "jobs", "defaults"]), VALUES, max_size=4)


def read(text: str) -> tuple[JobSpec, ...]:
    """Return the jobs; if the text is refused, check that the error is one line, and return no jobs."""
    try:
        return parse_jobs(text, "job.yaml", Path("/shared"), 1.9e9)
    except InvalidJob as error:
        line = str(error)
    assert line.startswith("job.yaml: ")
    assert "\n" not in line
    return ()


@settings(max_examples=400, deadline=None)
@given(JOBS, st.booleans())
def test_any_value_in_any_field(job: dict[str, object], runs: bool) -> None:
    """Jobs that were read have finite numbers and fit the protocol."""
    written = {"command": ["run"], **job} if runs else job
    for spec in read(yaml.safe_dump(written, allow_unicode=True)):
        for field in fields(spec):
            value = getattr(spec, field.name)
            assert not isinstance(value, float) or math.isfinite(value), field.name
        spec_to_proto(spec)


@settings(max_examples=300, deadline=None)
@given(st.text(alphabet=st.sampled_from("abg:-[]{}&*!|>'\"#%@`,?\n \t\0\x85\ud800é0129.~"), max_size=60))
def test_any_text(text: str) -> None:
    """Broken YAML of every kind is refused."""
    read(text)


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=60))
def test_any_text_that_decodes(content: bytes) -> None:
    """Control characters and all other text are read or refused."""
    read("command: [a]\nname: " + content.decode("latin-1"))
