"""REST against its twin in gRPC: every method, with every role."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

import grpc
import pytest
from google.protobuf.message import Message

from gavel.client import Client, JobSpec
from gavel.client.calls import Method
from gavel.client.views.measured_text import measured_words
from gavel.web.json_messages import to_json
from gavel.web.routes import NOT_SERVED, ROUTES, STREAMS, WHOLE, Route
from protos.gavel.v1 import cluster_pb2, history_pb2, jobs_pb2
from scheduler.live.access.roles import Role
from tests.support.live import Problem
from tests.web.conftest import ROLES, Site

STATUS = {
    grpc.StatusCode.INVALID_ARGUMENT: HTTPStatus.BAD_REQUEST,
    grpc.StatusCode.NOT_FOUND: HTTPStatus.NOT_FOUND,
    grpc.StatusCode.ALREADY_EXISTS: HTTPStatus.CONFLICT,
    grpc.StatusCode.FAILED_PRECONDITION: HTTPStatus.CONFLICT,
    grpc.StatusCode.UNAUTHENTICATED: HTTPStatus.UNAUTHORIZED,
    grpc.StatusCode.PERMISSION_DENIED: HTTPStatus.FORBIDDEN,
    grpc.StatusCode.UNAVAILABLE: HTTPStatus.SERVICE_UNAVAILABLE,
}
# Parts of answers that change from one call to the next.
VOLATILE = frozenset(
    {
        *(
            "now",
            "used",
            "expires",
            "until",
            "since",
            "starts",
            "created",
            "expected_start",
            "text",
            "rendered",
        ),
        *("id", "secret"),
    }
)
NAMES = [f"{route.verb} {route.path}" for route in ROUTES]


def request_of(route: Route) -> Message:
    """Return a request that changes nothing: what a change needs is missing in it, or names what does not exist."""
    request = Method(route.method, lambda reply: reply).request_type()
    for name in route.variables:
        setattr(request, name, "999" if route.changes else "1")
    for name, word in route.values.items():
        enum: Any = request.DESCRIPTOR.fields_by_name[name].enum_type
        setattr(request, name, enum.values_by_name[f"ACTION_{word.upper()}"].number)
    return request


def path_of(route: Route) -> str:
    """Return the path of the same request."""
    return route.path.format(**dict.fromkeys(route.variables, "999" if route.changes else "1"))


def by_grpc(site: Site, route: Route, request: Message, role: Role | None) -> Any:
    """Make the call by gRPC; return the reply or the Problem."""
    method: Method[Any] = Method(route.method, lambda reply: reply)
    metadata = () if role is None else (("authorization", f"Bearer {site.tokens[role]}"),)
    with grpc.insecure_channel(site.live.address) as channel:
        call: Any = channel.unary_unary(
            f"/gavel.v1.{route.method}",
            lambda message: message.SerializeToString(),
            method.reply_type.FromString,
        )
        try:
            return call(request, metadata=metadata, timeout=60)
        except grpc.RpcError as error:
            return Problem(error)


def by_rest(site: Site, route: Route, role: Role | None) -> Any:
    """Make the same call by REST."""
    token = site.tokens[role] if role is not None else ""
    return site.gateway.browser(token).request(route.verb, path_of(route), {} if route.body else None)


def without_volatile(value: Any) -> Any:
    """Return JSON data without what changes from one call to the next."""
    if isinstance(value, dict):
        return {name: without_volatile(part) for name, part in value.items() if not _is_volatile(name)}
    return [without_volatile(part) for part in value] if isinstance(value, list) else value


def _is_volatile(name: str) -> bool:
    """Return whether a field changes with time: sums of seconds grow while jobs run."""
    return name in VOLATILE or name.endswith("_s")


@pytest.fixture(scope="module")
def jobs(site: Site) -> list[str]:
    """A job of the user, with secrets in its launch, and one of somebody else."""
    own = JobSpec(command=("train",), name="own", job_type="t", env={"PASSWORD": "hush"}, user=Role.USER.word)
    other = JobSpec(command=("train",), name="other", user="ann")
    with Client(site.live.address, token=site.tokens[Role.OPERATOR]) as client:
        ids = list(client.submit([own, other]))
    # From then on nothing changes by itself until the round is over, in six minutes.
    for job in ids:
        site.live.do(site.live.daemon.run_job(job))
    return ids


def test_every_method_of_the_protocol_is_served_or_left_out_on_purpose() -> None:
    """A new method is a line in routes.py: in the table, or among those that REST leaves out."""
    methods = {
        f"{service.name}/{method.name}"
        for file in (jobs_pb2, cluster_pb2, history_pb2)
        for service in file.DESCRIPTOR.services_by_name.values()
        for method in service.methods
    }
    served = {route.method for route in ROUTES}
    assert methods == served | STREAMS | NOT_SERVED
    assert not served & (STREAMS | NOT_SERVED)


@pytest.mark.parametrize("route", ROUTES, ids=NAMES)
def test_routes_name_fields_of_their_requests(route: Route) -> None:
    """Variables, fixed values, bodies and filters are fields of the request."""
    fields = Method(route.method, lambda reply: reply).request_type.DESCRIPTOR.fields_by_name
    wanted = {*route.variables, *route.values, *({route.query} if route.query else set())}
    assert wanted | ({route.body} if route.body not in ("", WHOLE) else set()) <= set(fields)
    assert not (route.changes and route.shared_s)


@pytest.mark.parametrize("route", ROUTES, ids=NAMES)
def test_rest_answers_as_grpc_does(site: Site, jobs: list[str], route: Route) -> None:
    """For each role, the reply or the error of the twin; an agent's token is refused as such."""
    for role in ROLES:
        twin, reply = by_grpc(site, route, request_of(route), role), by_rest(site, route, role)
        if role is Role.AGENT:
            assert reply.status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN)
        elif isinstance(twin, Problem):
            assert (STATUS[twin.code], twin.reason, twin.field) == reply.problem, role
        else:
            assert reply.status == HTTPStatus.OK, reply.body
            # What callers share is what a viewer sees: without the data directory, for example.
            twin = by_grpc(site, route, request_of(route), Role.VIEWER) if route.shared_s else twin
            assert without_volatile(reply.json) == without_volatile(to_json(twin)), role


@pytest.mark.parametrize("route", ROUTES, ids=NAMES)
def test_without_a_token_nothing_is_answered(site: Site, route: Route) -> None:
    """No token, or a token in the wrong place."""
    assert by_rest(site, route, None).problem == (401, "unauthenticated", "")
    path = f"{path_of(route)}?token={site.tokens[Role.ADMIN]}"
    body: Any = {} if route.body else None
    assert site.gateway.browser().request(route.verb, path, body).status == 401


def test_other_users_see_no_launch(site: Site, jobs: list[str]) -> None:
    """The environment of a job is for its user and for operators, by every address that shows jobs."""
    for path in (f"/v1/jobs/{jobs[0]}", "/v1/jobs", "/v1/queue", f"/v1/jobs/{jobs[0]}:explain"):
        assert b"hush" not in site.program(Role.VIEWER).get(path).body, path
    assert (
        site.program(Role.USER).get(f"/v1/jobs/{jobs[0]}").json["spec"]["launch"]["env"]["PASSWORD"] == "hush"
    )
    assert b"hush" not in site.program(Role.ADMIN).get("/v1/queue").body


def test_commands_have_their_effect(site: Site) -> None:
    """Submit, hold, release, update, cancel, drain, resume, and a new policy, all by REST."""
    user, operator = site.program(Role.USER), site.program(Role.OPERATOR)
    body = {"specs": [{"name": "mine", "gpus": 2, "launch": {"command": ["true"], "ranks": "per_node"}}]}
    reply = user.post("/v1/jobs", body, Idempotency_Key="k1")
    assert reply.status == 200, reply.body
    (job,) = reply.json["jobs"]
    assert reply.json == user.post("/v1/jobs", body, Idempotency_Key="k1").json
    other = {"specs": [body["specs"][0] | {"name": "other"}]}
    assert user.post("/v1/jobs", other, Idempotency_Key="k1").problem == (
        409,
        "key_reused",
        "idempotency_key",
    )
    assert {"jobs": [job]} == user.post(f"/v1/jobs/{job}:hold").json
    assert user.get(f"/v1/jobs/{job}").json["state"] == "held"
    assert {"jobs": [job]} == user.post(f"/v1/jobs/{job}:release").json
    assert {"jobs": [job]} == user.request("PATCH", f"/v1/jobs/{job}", {"weight": 3}).json
    data = user.get(f"/v1/jobs/{job}").json
    assert (
        data["spec"]["weight"],
        data["spec"]["gpus"],
        data["spec"]["launch"]["ranks"],
    ) == (3.0, 2, "per_node")
    assert {"jobs": [job]} == user.post(f"/v1/jobs/{job}:cancel").json
    assert user.post(f"/v1/jobs/{job}:cancel").problem == (409, "refused", "")
    assert operator.post("/v1/nodes/n1:drain").json["drained"]
    assert not operator.post("/v1/nodes/n1:resume").json["drained"]
    node = operator.post("/v1/nodes/n1:drain", {"reason": "its fan", "node": "n2"}).json
    assert (node["name"], node["why"]) == ("n1", "drain by operator: its fan")
    assert operator.post("/v1/nodes/n1:resume", {"reason": "a\nb"}).problem == (400, "invalid", "reason")
    assert operator.post("/v1/nodes/n1:resume", b"its fan").problem == (415, "invalid", "Content-Type")
    assert not operator.post("/v1/nodes/n1:resume", {}).json["drained"]
    assert operator.request("PUT", "/v1/policy", {"policy": "las"}).json["policy"] == "las"
    assert user.request("PUT", "/v1/policy", {"policy": "fifo"}).problem == (403, "forbidden", "")


@pytest.mark.parametrize(
    ("path", "status", "field"),
    [
        ("/v1/jobs?user=%00", 400, "user"),
        ("/v1/jobs?page_size=1000000000", 400, "page_size"),
        ("/v1/jobs?page_token=nonsense", 400, "page_token"),
        ("/v1/jobs?bogus=1", 400, "bogus"),
        ("/v1/jobs?states=sleeping", 400, "states[0]"),
        ("/v1/jobs/1:explain?job=2", 400, "job"),
        ("/v1/rounds?since=tomorrow", 400, "since"),
        ("/v1/usage?by=moon", 400, "by"),
        ("/v1/jobs/..%2f..%2fetc%2fpasswd", 404, ""),
        ("/v1/jobs/%00", 404, ""),
        ("/v1/nothing", 404, ""),
    ],
)
def test_wrong_addresses_name_what_is_wrong(site: Site, path: str, status: int, field: str) -> None:
    """Bad parameters are refused with their name, before or by the scheduler."""
    assert (status, field) == site.program(Role.ADMIN).get(path).problem[::2]


def test_a_page_token_of_another_filter_is_refused(site: Site, jobs: list[str]) -> None:
    """A token continues only the list that it came from."""
    viewer = site.program(Role.VIEWER)
    token = viewer.get("/v1/jobs?page_size=1").json["next_page_token"]
    assert viewer.get(f"/v1/jobs?page_size=1&user=ann&page_token={token}").problem == (
        400,
        "invalid",
        "page_token",
    )


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b'{"specs": NaN}', b"\xff", b"[" * 100_000, b'{"specs": 1e999}'], ids=range(7)
)
def test_bodies_that_are_not_json_are_refused(site: Site, body: bytes) -> None:
    """Each is an error of the caller, and no error within the gateway."""
    reply = site.program(Role.USER).post("/v1/jobs", body, Content_Type="application/json")
    assert reply.problem[:2] == (400, "invalid")


def test_another_verb_is_refused(site: Site) -> None:
    """An address that exists, with a verb that it does not have."""
    assert site.program(Role.ADMIN).request("DELETE", "/v1/policy").problem == (405, "method_not_allowed", "")


def test_what_a_job_has_measured_has_the_words_of_the_command_line(site: Site, jobs: list[str]) -> None:
    """The page shows the same sentences as `gavel show`, with what would help; an unknown job is refused."""
    viewer = site.program(Role.VIEWER)
    assert viewer.get(f"/v1/jobs/{jobs[1]}/measured").json == []
    measured = {
        "wait": 0.75,
        "fetch": 0.74,
        "prep": 0.01,
        "gpu_rate": 100.0,
        "prep_rate": 900.0,
        "cached": 0.0,
    }
    lease = site.live.daemon.world.state.jobs[jobs[1]].lease
    site.live.do(site.live.daemon.report("n1", measured={lease: measured}))
    with Client(site.live.address, token=site.tokens[Role.VIEWER]) as client:
        job = client.get(jobs[1])
    words = dict(measured_words(job.measured, job.spec.cpus))
    assert dict(viewer.get(f"/v1/jobs/{jobs[1]}/measured").json) == words
    assert "all of its data in the node's cache would make it" in words["waits"]
    assert viewer.get("/v1/jobs/4711/measured").problem[:2] == (404, "not_found")
