"""Messages of the protocol as JSON, and JSON and query parameters as messages."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from google.protobuf.json_format import ParseDict
from hypothesis import given
from hypothesis import strategies as st

from gavel.client.errors import Invalid
from gavel.web.json_messages import fill, fill_from_query, to_json
from protos.gavel.v1 import cluster_pb2 as c
from protos.gavel.v1 import jobs_pb2 as j


def test_fields_keep_their_names_and_enums_are_words() -> None:
    """A node in JSON: words for states, RFC 3339 for times, numbers of 64 bits as numbers."""
    node = c.Node(name="n1", state=c.NODE_STATE_UP, gpus=[c.Gpu(index=1, jobs=["7"])], labels={"zone": "a"})
    node.since.seconds, node.since.nanos = 1_700_000_000, 250_000_000
    data = to_json(node)
    assert (data["name"], data["state"], data["since"]) == ("n1", "up", "2023-11-14T22:13:20.250Z")
    assert data["labels"] == {"zone": "a"}
    assert tuple(data["gpus"][0][name] for name in ("index", "jobs", "withheld")) == (1, ["7"], False)
    assert to_json(c.Status(epoch=1_795_434_611_533))["epoch"] == 1_795_434_611_533


def test_fields_with_presence_are_absent_if_they_are_not_set() -> None:
    """Absent is not zero: an exit code of 0 is there, one that does not exist is not."""
    assert "exit_code" not in to_json(j.Job(id="1"))
    assert to_json(j.Job(id="1", exit_code=0))["exit_code"] == 0
    assert tuple(to_json(j.Job())[name] for name in ("attempt", "why", "nodes")) == (0, "", [])
    assert "placement" not in to_json(j.Job())


def test_the_details_of_an_explanation_are_plain_json() -> None:
    """A struct keeps its shape, and whole numbers stay whole."""
    wire = j.Explanation()
    ParseDict({"gpus": 4, "share": 0.5, "ahead": [{"job": "3"}], "none": None, "yes": True}, wire.details)
    assert to_json(wire)["details"] == {
        "gpus": 4,
        "share": 0.5,
        "ahead": [{"job": "3"}],
        "none": None,
        "yes": True,
    }


def test_numbers_that_json_does_not_have_are_null() -> None:
    """NaN and infinity do not make the answer unreadable."""
    text = msgspec.json.encode(to_json(j.Job(cost=float("nan"), run_s=float("inf"))))
    assert tuple(msgspec.json.decode(text)[name] for name in ("cost", "run_s")) == (None, None)


def test_a_word_that_only_a_newer_scheduler_knows_is_its_number() -> None:
    """An unknown state is data as it came."""
    wire = j.Job.FromString(j.Job(id="1").SerializeToString() + b"\x18\x63")
    assert to_json(wire)["state"] == "99"


@pytest.mark.parametrize(
    ("data", "field"),
    [
        ({"specs": [{"gpus": "4"}]}, "specs[0].gpus"),
        ({"specs": [{"gpus": 1.5}]}, "specs[0].gpus"),
        ({"specs": [{"gpus": True}]}, "specs[0].gpus"),
        ({"specs": [{"gpus": -1}]}, "specs[0].gpus"),
        ({"specs": [{"gpus": 2**40}]}, "specs[0].gpus"),
        ({"specs": [{}, {"gpu": 1}]}, "specs[1].gpu"),
        ({"specs": [{"name": 7}]}, "specs[0].name"),
        ({"specs": [{"name": "\ud800"}]}, "specs[0].name"),
        ({"specs": {}}, "specs"),
        ({"specs": [7]}, "specs[0]"),
        ({"specs": [{"launch": {"ranks": "RANKS_PER_GPU"}}]}, "specs[0].launch.ranks"),
        ({"specs": [{"launch": {"env": {"A": 1}}}]}, "specs[0].launch.env.A"),
        ({"specs": [{"launch": {"env": []}}]}, "specs[0].launch.env"),
        ({"specs": [{"preemptible": 1}]}, "specs[0].preemptible"),
        ({"specs": [{"steps": "many"}]}, "specs[0].steps"),
        ([], ""),
        (None, ""),
        ({"\x00": 1}, "\x00"),
    ],
)
def test_wrong_json_names_the_field(data: Any, field: str) -> None:
    """Each error has the path of the field, as errors of the scheduler have."""
    with pytest.raises(Invalid) as error:
        fill(j.SubmitJobsRequest(), data)
    assert field == error.value.field


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("bogus", "1"),
        ("page_size", "many"),
        ("page_size", "-1"),
        ("page_size", "9" * 30),
        ("page_size", "१"),
        ("page_token", "a\x00b"),
        ("since", "yesterday"),
        ("since", "99999-01-01T00:00:00Z"),
        ("until", "9e99"),
        ("allocation", "1"),
    ],
)
def test_wrong_parameters_name_the_parameter(name: str, text: str) -> None:
    """Each error of a query has the name of the parameter."""
    from protos.gavel.v1 import history_pb2 as h

    with pytest.raises(Invalid) as error:
        fill_from_query(h.ListRoundsRequest(), [(name, text)])
    assert name == error.value.field


def test_parameters_fill_the_fields_of_a_request() -> None:
    """Numbers, truths, words, times in both forms, and lists by repetition."""
    names = [
        ("states", "queued"),
        ("states", "running"),
        ("user", "ann"),
        ("ended", "true"),
        ("ended_since", "1700000000"),
    ]
    wanted = fill_from_query(j.JobFilter(), names)
    assert list(wanted.states) == [j.JOB_STATE_QUEUED, j.JOB_STATE_RUNNING]
    assert (wanted.user, wanted.ended, wanted.ended_since.seconds) == ("ann", True, 1_700_000_000)
    again = fill_from_query(j.JobFilter(), [("ended_since", "2023-11-14T22:13:20Z")])
    assert again.ended_since.seconds == 1_700_000_000
    with pytest.raises(Invalid):
        fill_from_query(j.JobFilter(), [("user", "a"), ("user", "b")])


_TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
_COUNTS = st.integers(0, 2**32 - 1)
_SPECS = st.builds(
    j.JobSpec,
    name=_TEXTS,
    gpus=st.none() | _COUNTS,
    steps=st.none() | st.floats(allow_nan=False, allow_infinity=False),
    worker_types=st.lists(_TEXTS, max_size=3),
    labels=st.dictionaries(_TEXTS, _TEXTS, max_size=3),
    rates=st.dictionaries(_TEXTS, st.floats(allow_nan=False, allow_infinity=False), max_size=3),
    after=st.lists(st.builds(j.Dependency, job=_TEXTS, when=st.sampled_from([0, 1, 2])), max_size=2),
    launch=st.builds(
        j.Launch,
        command=st.lists(_TEXTS, max_size=3),
        ranks=st.sampled_from([0, 1, 2]),
        setup_limit_s=st.none() | st.just(0.0),
    ),
)


@given(_SPECS)
def test_a_job_is_the_same_after_a_way_through_json(spec: j.JobSpec) -> None:
    """What GET returns can be sent again: nothing is lost or added."""
    text = msgspec.json.encode(to_json(spec))
    assert spec == fill(j.JobSpec(), msgspec.json.decode(text))
