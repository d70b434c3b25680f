"""Submission over a real connection: accepted jobs, refused fields, keys, limits, previews."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import grpc
import pytest

from protos.gavel.v1 import jobs_pb2 as pb
from scheduler.core.facts import Fact, JobSubmitted
from scheduler.journal.store import SqliteJournal
from scheduler.live.access.people import PeopleConfig
from scheduler.live.wire.job_view import stamp
from tests.support.live import Live, SetClock, problem_of, spec, with_daemon
from tests.support.wording import Wording

Launch, Code = pb.Launch, grpc.StatusCode


def submit(*specs: pb.JobSpec, key: str = "") -> pb.SubmitJobsRequest:
    """Build a submission."""
    return pb.SubmitJobsRequest(specs=specs, idempotency_key=key)


@with_daemon()
async def test_jobs_are_accepted_in_order_with_arrays_and_dependencies(live: Live) -> None:
    """Ids come back in the order of the specs; an array is a job for each index; the spec can be read back."""
    jobs = live.jobs("ann")
    array = spec(
        name="train", gpus=2, steps=10.5, array=[0, 3], labels={"disk": "ssd"}, weight=2.0, preemptible=False
    )
    assert list((await jobs.SubmitJobs(submit(spec(), array))).jobs) == ["1", "2_0", "2_3"]
    later = spec(after=[pb.Dependency(job="2", when=pb.Dependency.WHEN_ENDED)])
    await jobs.SubmitJobs(submit(later))
    kept = (await jobs.GetJob(pb.GetJobRequest(job="2_3"))).spec
    assert (kept.gpus, kept.steps, kept.weight, kept.preemptible, kept.user) == (2, 10.5, 2.0, False, "ann")
    assert not kept.HasField("deadline_s")
    assert list(kept.launch.command) == ["true"]
    assert list((await jobs.GetJob(pb.GetJobRequest(job="3"))).blocked_by) == ["2_0", "2_3"]


@with_daemon()
async def test_a_launch_comes_back_unchanged(live: Live) -> None:
    """Every field of Launch survives the scheduler, which does not look inside. A job has a venv or a container."""
    launch = Launch(
        script="echo a\necho b",
        setup="pip install x",
        venv="/opt/venv",
        workdir="/data/ann",
        env={"LR": "0.1", "EMPTY": ""},
        env_from={"KEY": "s3-key"},
        checkpoint_dir="/ckpt/ann",
        ranks=Launch.RANKS_PER_NODE,
        checkpoints=Launch.CHECKPOINTS_PER_ATTEMPT,
        setup_limit_s=1800.0,
    )
    mounts, env = ["/data:/d:ro"], {"PATH": "/bin"}
    container = pb.Container(image="/images/x.sif", runtime="apptainer", mounts=mounts, env=env)
    for number, kept in enumerate((launch, Launch(command=["a"], container=container)), 1):
        await live.jobs().SubmitJobs(submit(spec(launch=kept)))
        assert kept == (await live.jobs().GetJob(pb.GetJobRequest(job=str(number)))).spec.launch


NAN, INF = float("nan"), float("inf")
WRONG: list[tuple[dict[str, Any], str]] = [
    ({"gpus": 0}, "gpus"),
    ({"gpus": 4_000_000_000}, "gpus"),
    ({"gpus": 2, "gpus_min": 3, "gpus_max": 4}, "gpus"),
    ({"gpus_min": 0}, "gpus_min"),
    ({"steps": NAN}, "steps"),
    ({"steps": -1.0}, "steps"),
    ({"weight": 0.0}, "weight"),
    ({"weight": INF}, "weight"),
    ({"deadline_s": -5.0}, "deadline_s"),
    ({"earliest_start_s": NAN}, "earliest_start_s"),
    ({"time_limit_s": 0.0}, "time_limit_s"),
    ({"min_run_s": -1.0}, "min_run_s"),
    ({"cpus": INF}, "cpus"),
    ({"memory_gb": -1.0}, "memory_gb"),
    ({"gpu_memory_gb": NAN}, "gpu_memory_gb"),
    ({"restart_cost_s": INF}, "restart_cost_s"),
    ({"max_cost": 0.0}, "max_cost"),
    ({"rates": {"v100": NAN}}, "rates.v100"),
    ({"rates": {"": 1.0}}, "rates"),
    ({"name": "a\nb"}, "name"),
    ({"name": "x" * 257}, "name"),
    ({"job_type": "a\0b"}, "job_type"),
    ({"tenant": "\x1b[2J"}, "tenant"),
    ({"worker_types": ["v100", ""]}, "worker_types[1]"),
    ({"worker_types": ["a"], "excluded_worker_types": ["a"]}, "excluded_worker_types"),
    ({"nodes": ["\n"]}, "nodes[0]"),
    ({"labels": {"k": "a\tb"}}, "labels.k"),
    ({"array": [1, 1]}, "array"),
    ({"array": list(range(10)), "after": [pb.Dependency(job="99")]}, "after"),
    ({"after": [pb.Dependency(job="")]}, "after[0].job"),
    ({"after": [pb.Dependency(job="1", when=9)]}, "after[0].when"),  # type: ignore[arg-type]
    ({"launch": Launch(ranks=7, command=["x"])}, "launch.ranks"),  # type: ignore[arg-type]
    ({"launch": Launch(checkpoints=7, command=["x"])}, "launch.checkpoints"),  # type: ignore[arg-type]
    *(
        ({"launch": Launch(setup_limit_s=value, command=["x"])}, "launch.setup_limit_s")
        for value in (0.0, -1.0, NAN, INF, 1e300)
    ),
    ({"launch": Launch(setup="x")}, "launch.command"),
    ({"launch": Launch(command=["x"], script="y")}, "launch.script"),
    ({"launch": Launch(command=[""])}, "launch.command[0]"),
    ({"launch": Launch(command=["x", "a\0b"])}, "launch.command[1]"),
    ({"launch": Launch(command=["x" * 200_000])}, "launch.command[0]"),
    ({"launch": Launch(command=["x" * 100_000] * 11)}, "launch.env"),
    ({"launch": Launch(script="\0")}, "launch.script"),
    ({"launch": Launch(command=["x"], env={"A=B": "1"})}, "launch.env"),
    ({"launch": Launch(command=["x"], env={"1A": "1"})}, "launch.env"),
    ({"launch": Launch(command=["x"], env={"A": "\0"})}, "launch.env.A"),
    ({"launch": Launch(command=["x"], env_from={"A": "../etc/shadow"})}, "launch.env_from.A"),
    ({"launch": Launch(command=["x"], env={"A": "1"}, env_from={"A": "s"})}, "launch.env_from.A"),
    ({"launch": Launch(command=["x"], upload="sha256:../../x")}, "launch.upload"),
    ({"launch": Launch(command=["x"], upload=f"sha256:{'0' * 64}")}, "launch.upload"),
    ({"launch": Launch(command=["x"], checkpoint_dir="ckpt")}, "launch.checkpoint_dir"),
    ({"launch": Launch(command=["x"], checkpoint_dir="/a/../b")}, "launch.checkpoint_dir"),
    ({"launch": Launch(command=["x"], workdir="a/b")}, "launch.workdir"),
    ({"launch": Launch(command=["x"], workdir="/a/..")}, "launch.workdir"),
    ({"launch": Launch(command=["x"], venv="..")}, "launch.venv"),
    ({"launch": Launch(command=["x"], venv=".venv")}, "launch.venv"),
    ({"launch": Launch(command=["x"], env={"RANK": "3"})}, "launch.env.RANK"),
    ({"launch": Launch(command=["x"], env_from={"GAVEL_JOB_ID": "s"})}, "launch.env_from.GAVEL_JOB_ID"),
    ({"launch": Launch(command=["x" * 125_000])}, "launch.command[0]"),
    ({"launch": Launch(script="x" * 125_000)}, "launch.script"),
]


@with_daemon()
async def test_every_wrong_field_is_named(live: Live) -> None:
    """The error is INVALID_ARGUMENT with the field's path, in one line; one wrong job refuses its whole submission."""
    jobs = live.jobs()
    for fields, field in WRONG:
        for place, specs in ((0, [spec(**fields)]), (1, [spec(), spec(**fields), spec()])):
            problem = await problem_of(jobs.SubmitJobs(submit(*specs)))
            expected = (Code.INVALID_ARGUMENT, "invalid", f"specs[{place}].{field}")
            assert expected == (problem.code, problem.reason, problem.field), fields
            assert "\n" not in problem.text
            assert len(problem.text) < 300
    problem = await problem_of(jobs.SubmitJobs(submit()))
    assert (problem.code, problem.field) == (Code.INVALID_ARGUMENT, "specs")
    assert live.world.state.jobs == {}


@with_daemon()
async def test_an_impossible_job_is_refused_at_once(live: Live) -> None:
    """More GPUs than any type has, or an unknown type: refused with the field, not left waiting."""
    await live.node("n1", gpus=2)
    for fields, field in (({"gpus": 3}, "gpus"), ({"worker_types": ["a100"]}, "worker_types")):
        problem = await problem_of(live.jobs().SubmitJobs(submit(spec(**fields))))
        assert (Code.INVALID_ARGUMENT, f"specs[0].{field}") == (problem.code, problem.field)


@with_daemon()
async def test_the_same_key_is_the_same_job(live: Live) -> None:
    """A key that is sent again gives the same ids, or an error with other specs. Two users may use the same key."""
    ann, bob = live.jobs("ann"), live.jobs("bob")
    first = await ann.SubmitJobs(submit(spec(name="a"), key="k"))
    assert first == await ann.SubmitJobs(submit(spec(name="a"), key="k"))
    problem = await problem_of(ann.SubmitJobs(submit(spec(name="b"), key="k")))
    expected = (Code.ALREADY_EXISTS, "key_reused", "idempotency_key")
    assert expected == (problem.code, problem.reason, problem.field)
    assert "'k'" in problem.text
    assert list((await bob.SubmitJobs(submit(spec(name="b"), key="k"))).jobs) == ["2"]
    for key in ("x" * 257, "a\nb"):
        assert (await problem_of(ann.SubmitJobs(submit(spec(), key=key)))).field == "idempotency_key"


@with_daemon()
async def test_fifty_clients_race_one_key(live: Live) -> None:
    """P2: fifty submissions with one key create one job, and all get its id."""
    clients = [live.jobs() for _ in range(50)]
    answers = await asyncio.gather(*(jobs.SubmitJobs(submit(spec(), key="race")) for jobs in clients))
    assert {"1"} == {job for answer in answers for job in answer.jobs}
    assert list(live.world.state.jobs) == ["1"]


def test_an_acknowledged_job_is_there_after_a_restart_and_a_retry_finds_it(tmp_path: Path) -> None:
    """P1, P2: an answered submission is in the journal; a client that lost the answer retries, and gets that job."""

    async def story() -> None:
        with SqliteJournal(tmp_path / "journal.db") as journal:
            async with Live(tmp_path, journal=journal) as live:
                first = await live.jobs().SubmitJobs(submit(spec(), spec(array=[0, 1]), key="k"))
                lost = live.jobs().SubmitJobs(submit(spec(name="lost"), key="l"))
                await live.until(lambda: len(live.world.state.jobs) == 4)
                lost.cancel()
            async with Live(tmp_path, journal=journal) as live:
                assert first == await live.jobs().SubmitJobs(submit(spec(), spec(array=[0, 1]), key="k"))
                again = await live.jobs().SubmitJobs(submit(spec(name="lost"), key="l"))
                assert list(again.jobs) == ["3"]
                assert list(live.world.state.jobs) == ["1", "2_0", "2_1", "3"]

    asyncio.run(story())


class Failing(SqliteJournal):
    """A journal that fails at a submission, before the write or after it."""

    # "before" or "after" the write; None for never.
    fails = ""

    def append(self, now_s: float, facts: Sequence[Fact]) -> None:
        """Write the facts, and fail as asked."""
        fails = self.fails if any(isinstance(fact, JobSubmitted) for fact in facts) else ""
        if fails == "before":
            raise OSError("the disk is gone")
        super().append(now_s, facts)
        if fails == "after":
            raise OSError("the power is gone")


@pytest.mark.parametrize(("fails", "kept"), [("before", False), ("after", True)])
def test_a_daemon_that_dies_around_a_write_loses_and_doubles_nothing(
    tmp_path: Path, fails: str, kept: bool
) -> None:
    """P1, P2: the client gets no answer; a job that was written is kept, and in both cases a retry gives one job."""

    async def story() -> None:
        with Failing(tmp_path / "journal.db") as journal:
            async with Live(tmp_path, journal=journal) as live:
                await live.jobs().SubmitJobs(submit(spec(name="acknowledged"), key="a"))
                journal.fails = fails
                unanswered = live.jobs().SubmitJobs(submit(spec(name="b"), key="b"))
                with pytest.raises(OSError, match="is gone"):
                    await live.ended()
                assert not unanswered.done()
                unanswered.cancel()
        with SqliteJournal(tmp_path / "journal.db") as journal:
            async with Live(tmp_path, journal=journal) as live:
                assert kept == ("2" in live.world.state.jobs)
                again = await live.jobs().SubmitJobs(submit(spec(name="b"), key="b"))
                names = [job.spec.name for job in live.world.state.jobs.values()]
                assert (list(again.jobs), names) == (["2"], ["acknowledged", "b"])

    asyncio.run(story())


@with_daemon(config=PeopleConfig(submission_jobs_max=4))
async def test_jobs_of_one_submission_are_limited(live: Live, wording: Wording) -> None:
    """Each member of an array counts, since other calls wait while one submission is handled."""
    jobs = live.jobs()
    for specs, field in (
        ([spec(array=range(5))], "specs[0].array"),
        ([spec()] * 5, "specs"),
        ([spec(array=range(3)), spec(), spec()], "specs"),
    ):
        problem = await problem_of(jobs.SubmitJobs(pb.SubmitJobsRequest(specs=specs)))
        assert (problem.code, problem.field) == (Code.INVALID_ARGUMENT, field)
        assert ("5 jobs" in problem.text, " 4" in problem.text) == (True, True)
        wording(problem.text)
    accepted = await jobs.SubmitJobs(pb.SubmitJobsRequest(specs=[spec(array=range(3)), spec()]))
    assert len(accepted.jobs) == 4


@with_daemon(config=PeopleConfig(jobs_unfinished_max=3))
async def test_unfinished_jobs_of_a_user_are_limited(live: Live) -> None:
    """RESOURCE_EXHAUSTED with RetryInfo; other users and retries are not limited; an ended job makes room."""
    ann = live.jobs("ann")
    await ann.SubmitJobs(submit(spec(array=[0, 1, 2]), key="k"))
    problem = await problem_of(ann.SubmitJobs(submit(spec())))
    assert (problem.code, problem.reason) == (Code.RESOURCE_EXHAUSTED, "too_many")
    assert problem.retry_s
    await ann.SubmitJobs(submit(spec(array=[0, 1, 2]), key="k"))
    await live.jobs("bob").SubmitJobs(submit(spec()))
    await ann.CommandJob(pb.CommandJobRequest(job="1_1", action=pb.CommandJobRequest.ACTION_CANCEL))
    await ann.SubmitJobs(submit(spec()))


@with_daemon(config=PeopleConfig(submissions_per_s=0.5, submissions_burst=2), clock=SetClock(1e9))
async def test_submissions_of_a_user_are_limited_in_rate(live: Live) -> None:
    """After a burst, the rate limit applies; the reply has the time after which to retry."""
    jobs = live.jobs()
    await jobs.SubmitJobs(submit(spec(), spec()))
    problem = await problem_of(jobs.SubmitJobs(submit(spec())))
    assert problem.code == Code.RESOURCE_EXHAUSTED
    assert problem.retry_s == 2.0
    assert isinstance(live.world.clock, SetClock)
    live.world.clock.at_s += 2.0
    await jobs.SubmitJobs(submit(spec()))


@with_daemon()
async def test_a_message_that_is_too_large_is_refused(live: Live) -> None:
    """100 MB are not read, and the next call is answered as usual."""
    jobs = live.jobs()
    with pytest.raises(grpc.RpcError) as caught:
        await jobs.SubmitJobs(submit(spec(launch=Launch(script="x" * 100_000_000))))
    assert caught.value.code() == Code.RESOURCE_EXHAUSTED  # type: ignore[attr-defined]
    await jobs.SubmitJobs(submit(spec()))


@with_daemon()
async def test_a_preview_submits_nothing(live: Live) -> None:
    """A preview has the refusal, or the nodes, the rate and the start that a submission would get."""
    await live.node("n1", gpus=2, worker_type="v100", labels={"disk": "ssd"})
    await live.node("n2", gpus=4, worker_type="a100")
    specs = [
        spec(rates={"v100": 5.0}, worker_types=["v100"]),
        spec(gpus=9),
        spec(labels={"disk": "ssd"}),
        spec(launch=Launch()),
        spec(after=[pb.Dependency(job="3")]),
        spec(job_type="gpt", plans=[pb.Plan(worker_type="v100", gpus=2, label="p2", rate=3.0)], gpus=2),
    ]
    fits, wide, picky, empty, after, planned = (
        await live.jobs().PreviewJobs(pb.PreviewJobsRequest(specs=specs))
    ).previews
    (place,) = fits.places
    assert (
        *(place.worker_type, place.gpus, place.gpus_fitting, place.gpus_free),
        *(place.rate, place.rate_guessed, list(place.nodes)),
    ) == ("v100", 1, 2, 2, 5.0, False, ["n1"])
    assert fits.accepted
    assert fits.HasField("expected_start")
    assert (wide.accepted, wide.refused_field) == (False, "gpus")
    assert {place.worker_type: place.gpus_fitting for place in picky.places} == {"v100": 2}
    assert (empty.accepted, empty.refused_field) == (False, "launch.command")
    assert (after.accepted, after.refused_field) == (False, "after")
    assert [(place.worker_type, place.gpus, place.rate) for place in planned.places] == [("v100", 2, 3.0)]
    assert live.world.state.jobs == {}
    assert live.world.state.active == {}


@with_daemon()
async def test_a_scheduler_that_stops_answers_unavailable(live: Live) -> None:
    """The answer has the time after which to retry; acknowledged jobs stay."""
    await live.jobs().SubmitJobs(submit(spec()))
    live.world.stop()
    problem = await problem_of(live.jobs().SubmitJobs(submit(spec())))
    assert (problem.code, problem.reason) == (Code.UNAVAILABLE, "stopping")
    assert problem.retry_s


def test_a_time_that_no_calendar_has_is_shown_as_the_last_one() -> None:
    """Estimates and old journals may hold times beyond any calendar; these are shown as the last possible time."""
    assert stamp(1e308).ToDatetime().year == 9999


@with_daemon()
async def test_impossible_figures_are_refused_with_their_limits(live: Live, wording: Wording) -> None:
    """The scheduler refuses them at once and by their field, even if no node has joined."""
    late = spec(earliest_start_s=1e308)
    (preview,) = (await live.jobs().PreviewJobs(pb.PreviewJobsRequest(specs=[late]))).previews
    assert preview.refused_field == "earliest_start_s"
    problem = await problem_of(live.jobs().SubmitJobs(submit(spec(cpus=1e-308))))
    assert (problem.code, problem.field) == (Code.INVALID_ARGUMENT, "specs[0].cpus")
    assert all(figure in problem.text for figure in ("1e-308", "0.001", "1,000,000"))
    wording(problem.text)
