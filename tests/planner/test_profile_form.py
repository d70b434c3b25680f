"""The form of profiles: what is read, and what is refused with the name of the field."""

import json
import math
from typing import Any

import pytest

from planner.errors import BadProfile
from planner.profile_form import LAYERS_MAX, read_profile
from tests.planner.profiles import document, layer


def test_layers_and_sizes_are_read():
    """In order; a repeated layer counts on the number in its name, or begins with 0."""
    profile = read_profile(
        document([layer("embed"), layer("h.3", repeat=2), layer("x", repeat=2)], tied=[["x.1", "embed"]])
    )
    assert [each.name for each in profile.layers] == ["embed", "h.3", "h.4", "x.0", "x.1"]
    assert (profile.name, profile.worker_types, profile.tied) == ("small", ["a100"], ((0, 4, 1e6),))
    assert (profile.parameters, profile.state_bytes_per_parameter) == (4e6, 16)
    assert profile.layers[0].times["a100"].samples.tolist() == [1, 8]
    assert profile.layers[0].times["a100"].seconds.tolist() == [[1e-3, 8e-3], [2e-3, 16e-3]]


def test_no_parameter_is_shared_twice():
    """A layer in two groups shares with the second one what the first one left; the model never has fewer than none."""
    layers = [layer("a"), layer("b"), layer("c", parameters=3e6)]
    twice = read_profile(document(layers, tied=[["a", "b", "c"], ["b", "a"]]))
    assert (twice.parameters, twice.tied) == (3e6, ((0, 1, 1e6), (1, 2, 1e6), (0, 1, 0.0)))


WRONG: list[Any] = [
    None,
    [],
    {"format": "gavel-profile/2"},
    document([]),
    document(["h.0"]),
    document([layer("a"), layer("b", ms={"a100": {"1": [1.0, math.nan]}})]),
    document([layer("a"), layer("b", ms={"a100": {"1": [-1, 1.0]}})]),
    document([layer("a", ms={"a100": {"1": [math.inf, 1.0]}})]),
    document([layer("a", ms={"a100": {"1": [1.0]}})]),
    document([layer("a", ms={"a100": {"one": [1.0, 1.0]}})]),
    document([layer("a", ms={"a100": {}})]),
    document([layer("a", ms={"a100": 3})]),
    document([layer("a", ms={})]),
    document([{key: value for key, value in layer("a").items() if key != "ms"}]),
    document([layer("a", parameters=None)]),
    document([layer("a", parameters="many")]),
    document([layer("a", parameters=True)]),
    document([layer("a", stored_bytes=-1)]),
    document([layer("a", flops=10**400)]),
    document([layer("a", flops=1e300)]),
    document([layer("a", ms={"a100": {"1": [0, 0]}})]),
    document([layer("a", output_byts=1)]),
    document([layer("a")], dtype_bytes=math.nan),
    document([layer("a")], optimiser_bytes_per_parameter=12),
    document([layer("a"), layer("a")]),
    document([layer("a"), layer("b", ms={"h100": {"1": [1.0, 2.0]}})]),
    document([layer("a", repeat=0)]),
    document([layer("a", repeat=LAYERS_MAX), layer("b")]),
    document([layer("")]),
    document([layer("a\n\x1b[2J" + "b" * 300)]),
    document([layer("a"), layer("b")], tied=[["a", "c"]]),
    document([layer("a"), layer("b")], tied=[["a", "a"]]),
    document([layer("a"), layer("b")], tied=["a", "b"]),
    document([layer("a", tensor={"1": {"all_reduce_bytes": 1, "ms": layer("a")["ms"]}})]),
    document([layer("a", tensor={"2": {"all_reduce_bytes": 1, "ms": {"t4": {"1": [1.0, 2.0]}}}})]),
    document([layer("a", tensor={"2": {"ms": layer("a")["ms"]}})]),
    document([layer("a", tensor={"2": 3})]),
    document([layer("a"), layer("b")], tied=[{"layers": ["a", "b"], "parameters": 1e6 + 1}]),
    document([layer("a"), layer("b")], tied=[{"layers": ["a", "b"], "parameters": math.nan}]),
    document([layer("a"), layer("b")], tied=[{"layers": ["a", "c"], "parameters": 1}]),
    document([layer("a"), layer("b")], tied=[{"layers": ["a", "b"]}]),
    document([layer("a"), layer("b")], tied=[{"parameters": 1}]),
    document([layer("a"), layer("b")], tied=[{"layers": ["a", "b"], "parameter": 1}]),
    document([layer("a", input_bytes=-1)]),
    document([layer("a"), layer("b")], tied=[["a", "b"], {"layers": ["a", "b"], "parameters": 1}]),
]


@pytest.mark.parametrize("wrong", WRONG, ids=range(len(WRONG)))
def test_what_is_no_profile_is_refused(wrong, wording):
    """One line without control characters, with the file and the field; also after a way through JSON."""
    with pytest.raises(BadProfile) as refused:
        read_profile(json.loads(json.dumps(wrong)), "model.profile.json")
    assert str(refused.value).isprintable()
    wording(refused.value)
