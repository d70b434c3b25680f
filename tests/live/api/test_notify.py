"""Notifications of jobs over a real connection: jobs name channels, and each receives what it was asked for."""

from __future__ import annotations

import asyncio
from pathlib import Path

import grpc

from protos.gavel.v1 import cluster_pb2 as cpb
from protos.gavel.v1 import jobs_pb2 as pb
from scheduler.live.access.roles import Role
from scheduler.live.observe.notify.channels import Channel
from tests.support.live import Live, problem_of, spec
from tests.support.receiver import Receiver, Request
from tests.support.wording import Wording

Code, Command = grpc.StatusCode, pb.CommandJobRequest


def notify(*channels: str, on: tuple[str, ...] = ()) -> pb.JobSpec:
    """Return a job that notifies these channels."""
    return spec(notify=[pb.Notify(to=channel, on=on) for channel in channels])


def jobs_of(requests: list[Request]) -> dict[str, list[str]]:
    """Return the jobs in these messages, by event."""
    return {
        request.message["event"]: [entry["job"]["id"] for entry in request.message["events"]]
        for request in requests
    }


def test_a_job_notifies_the_channels_that_it_names(tmp_path: Path, wording: Wording) -> None:
    """Each job reports its own events to its channel, and no other; unknown and closed channels are refused."""

    async def story() -> None:
        with Receiver() as team, Receiver() as oncall:
            channels = [
                Channel(name="team", url=team.url, for_jobs=True),
                Channel(name="oncall", url=oncall.url, events=("job_held",)),
            ]
            async with Live(tmp_path, channels=channels) as live:
                jobs = live.jobs("ann")
                for name in ("oncall", "teem"):
                    refused = await problem_of(
                        jobs.SubmitJobs(pb.SubmitJobsRequest(specs=[notify("team", name)]))
                    )
                    assert (refused.code, refused.field) == (Code.INVALID_ARGUMENT, "specs[0].notify[1].to")
                    wording(refused.text)
                previews = await jobs.PreviewJobs(pb.PreviewJobsRequest(specs=[notify("teem")]))
                assert previews.previews[0].refused_field == "notify[0].to"
                specs = [spec(), notify("team", on=("held",)), notify("team")]
                await jobs.SubmitJobs(pb.SubmitJobsRequest(specs=specs))
                for action in (Command.ACTION_HOLD, Command.ACTION_CANCEL):
                    for job in ("1", "2", "3"):
                        await jobs.CommandJob(Command(job=job, action=action))
                (first, *_) = await asyncio.to_thread(oncall.wait, 1)
                assert jobs_of([first])["job_held"][0] == "1"
                of_team = await asyncio.to_thread(team.wait, 2)
                assert jobs_of(of_team) == {"job_held": ["2"], "job_cancelled": ["3"]}
                kept = (await jobs.GetJob(pb.GetJobRequest(job="2"))).spec
                assert [(entry.to, list(entry.on)) for entry in kept.notify] == [("team", ["held"])]

    asyncio.run(story())


def test_only_operators_see_addresses_and_send_tests(tmp_path: Path, wording: Wording) -> None:
    """Users see the names of channels that jobs may choose; viewers see none, and neither may test them."""

    async def story() -> None:
        channels = [
            Channel(name="team", url="https://team.example/secret", for_jobs=True),
            Channel(name="oncall", url="https://oncall.example/secret", events=("job_held",)),
        ]
        async with Live(tmp_path, auth="tokens", channels=channels) as live:
            assert live.people.access is not None
            cluster = {
                role: live.cluster(token=live.people.access.create("ann", role, 3600.0)[1])
                for role in (Role.VIEWER, Role.USER, Role.OPERATOR)
            }
            request = cpb.ListChannelsRequest()
            for role in (Role.VIEWER, Role.USER):
                refused = await problem_of(cluster[role].TestChannel(cpb.TestChannelRequest(channel="team")))
                assert refused.code == Code.PERMISSION_DENIED
            wording((await problem_of(cluster[Role.VIEWER].ListChannels(request))).text)
            (channel,) = (await cluster[Role.USER].ListChannels(request)).channels
            assert channel == cpb.Channel(name="team", for_jobs=True)
            rows = (await cluster[Role.OPERATOR].ListChannels(request)).channels
            assert [(row.name, row.url) for row in rows] == [
                ("team", "https://team.example"),
                ("oncall", "https://oncall.example"),
            ]

    asyncio.run(story())
