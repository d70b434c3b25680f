"""A launch that no agent could start is refused at submission, by its field, before any retry is used up."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protos.gavel.v1.jobs_pb2 import Container, JobSpec
from protos.gavel.v1.jobs_pb2 import Launch as WireLaunch
from protos.gavel.v1.limits import SET_BY_GAVEL
from scheduler.live.wire.jobs import launch_to_wire, spec_from_wire
from scheduler.model.errors import InvalidSpec
from worker_agent.core.messages import Container as AgentContainer
from worker_agent.core.messages import Order
from worker_agent.link.messages import launch_of as agents_launch
from worker_agent.runs.launch import LaunchError, launch_of

RUN: dict[str, Any] = {"command": ["a"]}
DIGEST = "sha256:" + "0" * 64

# Field of a launch → launches that an agent cannot start because of this field.
WRONG: dict[str, list[dict[str, Any]]] = {
    "command": [{}, {"command": [""]}, {"command": ["a\0"]}, {"command": ["a", "x" * 120_001]}],
    "script": [{**RUN, "script": "b"}, {"script": "\0"}, {"script": "x" * 120_001}],
    "setup": [{**RUN, "setup": "\0"}, {**RUN, "setup": "x" * 120_001}],
    "venv": [
        *({**RUN, "venv": path} for path in ("v", "./v", "~/v")),
        {**RUN, "venv": "/v", "container": Container(image="a")},
    ],
    "workdir": [
        *({**RUN, "workdir": path} for path in ("w", "~/w", ".")),
        *({**RUN, "workdir": path, "upload": DIGEST} for path in ("/w", "../w", "a/../../w")),
    ],
    "upload": [{**RUN, "upload": "md5:1"}],
    "env": [
        *({**RUN, "env": {name: "1"}} for name in sorted(SET_BY_GAVEL | {"GAVEL_X", "A B", "1A", ""})),
        *({**RUN, "env": {"A": value}} for value in ("\0", "x" * 120_001)),
    ],
    "env_from": [
        *({**RUN, "env_from": {name: "s"}} for name in ("RANK", "GAVEL_X", "A-B")),
        {**RUN, "env": {"A": "1"}, "env_from": {"A": "s"}},
    ],
    "checkpoint_dir": [{**RUN, "checkpoint_dir": "c"}],
    "ranks": [{**RUN, "ranks": 7}],
    "checkpoints": [{**RUN, "checkpoints": 7}],
    "container": [
        *(
            {**RUN, "container": Container(image=image)}
            for image in (
                "",
                "/",
                "/a/../b",
                "/a:b",
                "./a",
                "a.sif",
                "../a",
                "-v",
                "a b",
                "docker://a",
                "a\0",
                "x" * 300,
            )
        ),
        {**RUN, "container": Container(image="a", runtime="lxc")},
        *(
            {**RUN, "container": Container(image="a", mounts=[mount])}
            for mount in (
                "",
                "/",
                "a",
                "/a:b",
                "/a:/b:rw",
                "/a/../b",
                "/a:/..",
                "/a,b",
                "/a:/b:/c",
                "/a:/b:/c:ro",
                "/\n",
            )
        ),
        {**RUN, "container": Container(image="a", mounts=["/a", "/b:/a"])},
        {**RUN, "container": Container(image="a", mounts=[f"/{i}" for i in range(101)])},
        *({**RUN, "container": Container(image="a", env={name: "1"})} for name in ("GAVEL_X", "RANK", "A B")),
    ],
    "outputs": [
        *({**RUN, "outputs": ["a", path]} for path in ("", "/a", "../a", "a/..", "\0")),
        *({**RUN, "outputs": paths} for paths in (["a"] * 1001, ["x" * 4000] * 300)),
    ],
    "setup_limit_s": [{**RUN, "setup_limit_s": value} for value in (0.0, -1.0, math.nan, math.inf)],
    "terminal": [
        *(
            {**RUN, "ranks": WireLaunch.RANKS_PER_NODE, "terminal": {field: value}}
            for field, value in (("rows", 10_001), ("columns", 10_001), ("keep_s", 0.0), ("keep_s", math.nan))
        ),
    ],
}


def submitted(fields: dict[str, Any]) -> WireLaunch:
    """Return this launch as the scheduler sends it to an agent."""
    return launch_to_wire(spec_from_wire(JobSpec(launch=WireLaunch(**fields))).launch)


@pytest.mark.parametrize("field", WireLaunch.DESCRIPTOR.fields_by_name)
def test_every_field_of_a_launch_is_checked(field: str) -> None:
    """Each launch here cannot be started, and is refused by the field's name; a field that is added needs its cases."""
    for fields in WRONG[field]:
        with pytest.raises(InvalidSpec) as refused:
            submitted(fields)
        assert refused.value.field.startswith(f"launch.{field}"), fields


WORDS = st.one_of(
    st.sampled_from(["", "/a", "a", "..", "/a/..", "~", ".", "\0", "x" * 120_001, DIGEST]), st.text()
)
NAMES = st.one_of(st.sampled_from([*sorted(SET_BY_GAVEL), "GAVEL_A", "A", "B", "a b"]), st.text(max_size=3))
LAUNCHES = st.fixed_dictionaries(
    {},
    optional={
        "command": st.lists(WORDS, max_size=3),
        "env": st.dictionaries(NAMES, WORDS, max_size=2),
        "env_from": st.dictionaries(NAMES, st.sampled_from(["s", "secret-1", "/x"]), max_size=2),
        "ranks": st.integers(0, 2),
        "checkpoints": st.integers(0, 2),
        "setup_limit_s": st.floats(),
        "container": st.builds(
            Container,
            image=st.one_of(WORDS, st.sampled_from(["/image", "python:3.12"])),
            mounts=st.lists(st.one_of(WORDS, st.just("/a:/b:ro")), max_size=2),
            env=st.dictionaries(NAMES, WORDS, max_size=1),
        ),
        "outputs": st.lists(WORDS, max_size=2),
        **dict.fromkeys(("script", "setup", "venv", "workdir", "checkpoint_dir", "upload"), WORDS),
    },
)


@settings(max_examples=300, deadline=None)
@given(LAUNCHES)
def test_an_accepted_launch_can_be_started(fields: dict[str, Any]) -> None:
    """A launch that passes at submission passes on the node, too."""
    try:
        kept = submitted(fields)
    # The protocol cannot carry half of a surrogate pair.
    except (InvalidSpec, UnicodeEncodeError):
        return
    launch_of(Order("1", "1", 1, (0,), 1.0, launch=agents_launch(kept)))


def test_an_agent_that_does_not_know_containers_refuses_the_job() -> None:
    """It would run the program directly on the node, so it gets a venv that agents refuse; newer ones ignore that."""
    wire = submitted({**RUN, "container": Container(image="a")})
    newer = Order("1", "1", 1, (0,), 1.0, launch=agents_launch(wire))
    assert (launch_of(newer).venv, launch_of(newer).container) == ("", AgentContainer(image="a"))
    wire.ClearField("container")
    with pytest.raises(LaunchError, match="upgrade"):
        launch_of(Order("1", "1", 1, (0,), 1.0, launch=agents_launch(wire)))
