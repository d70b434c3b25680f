"""The cluster over a real connection: status, nodes, policy, allocation, rounds, prices, rates."""

from __future__ import annotations

import asyncio

import grpc

from protos.gavel.v1 import cluster_pb2 as pb
from protos.gavel.v1 import jobs_pb2
from scheduler.core.facts import PricesSet, RatesGiven
from scheduler.live import feed
from scheduler.live.api.cluster_view import IDLE_MAX
from scheduler.live.node_views import GpuDetails, NodeDetails
from tests.support.live import DEADLINE_S, Live, SetClock, problem_of, spec, with_daemon
from tests.support.wording import Wording

Code, Node = grpc.StatusCode, pb.CommandNodeRequest


async def submitted(live: Live, *specs: jobs_pb2.JobSpec) -> None:
    """Submit these jobs."""
    await live.jobs().SubmitJobs(jobs_pb2.SubmitJobsRequest(specs=specs))


@with_daemon()
async def test_the_status_counts_what_is_there(live: Live) -> None:
    """Jobs by state, nodes, GPUs, the round; every state is named, even at zero."""
    await live.node("n1", gpus=2)
    await submitted(live, spec(), spec(gpus=2))
    await live.run_job("1")
    status = await live.cluster().GetStatus(pb.GetStatusRequest())
    assert (status.epoch, status.nodes, status.gpus, status.gpus_busy, status.round) == (1, 1, 2, 1, 1)
    assert {name: count for name, count in status.jobs.items() if count} == {"running": 1, "queued": 1}
    assert len(status.jobs) == 7
    assert status.now.seconds >= status.started.seconds > 1_500_000_000
    assert str(live.folder) == status.data_dir


@with_daemon(clock=SetClock(1e9))
async def test_idle_gpus_are_shown(live: Live, wording: Wording) -> None:
    """By the status, for the longest ones; by the job; and by its explanation."""
    count = IDLE_MAX + 2
    await live.node("n1", gpus=count)
    await submitted(live, *(spec(user="ada") for _ in range(count)))
    leases = [await live.run_job(str(number + 1)) for number in range(count)]
    live.world.clock.at_s += 7200.0  # type: ignore[attr-defined]
    idle_s = {lease: 3600.0 + 60.0 * number for number, lease in enumerate(leases)}
    await live.report("n1", idle_s=idle_s)
    status = await live.cluster().GetStatus(pb.GetStatusRequest())
    assert len(status.warnings) == IDLE_MAX + 1
    wording("\n".join(status.warnings[:2]))
    wording(status.warnings[-1])
    job = await live.jobs().GetJob(jobs_pb2.GetJobRequest(job="1"))
    assert job.placement.idle_since.seconds == 1e9 + 3600
    explanation = await live.jobs().ExplainJob(jobs_pb2.ExplainJobRequest(job="1"))
    assert "its GPUs have been idle" in explanation.text
    await live.report("n1", idle_s={})
    assert (await live.cluster().GetStatus(pb.GetStatusRequest())).warnings == []
    job = await live.jobs().GetJob(jobs_pb2.GetJobRequest(job="1"))
    assert not job.placement.HasField("idle_since")


@with_daemon()
async def test_nodes_are_shown_with_their_agents_news(live: Live) -> None:
    """A node has the core's fields, the agent's, and the jobs on each GPU; an unknown name is NOT_FOUND."""
    await live.node("n1", gpus=2, labels={"disk": "ssd"}, cpus=8.0, gpu_memory_gb=16.0)
    await live.node("n2", gpus=1, worker_type="t4")
    live.nodes.news["n1"] = NodeDetails(
        last_message_s=100.5,
        agent_version="0.1",
        gpus={1: GpuDetails(name="V100", uuid="GPU-1", memory_gb=32.0)},
    )
    await submitted(live, spec(worker_types=["v100"]))
    await live.run_job("1")
    both = (await live.cluster().ListNodes(pb.ListNodesRequest())).nodes
    assert [node.name for node in both] == ["n1", "n2"]
    (node,) = (await live.cluster().ListNodes(pb.ListNodesRequest(nodes=["n1"]))).nodes
    assert (
        *(node.state, node.agent_version, node.heard.seconds),
        node.cpus,
    ) == (pb.NODE_STATE_UP, "0.1", 100, 8.0)
    assert ({"1"}, 16.0, "V100", 32.0) == (
        {job for gpu in node.gpus for job in gpu.jobs},
        *(node.gpus[0].memory_gb, node.gpus[1].name, node.gpus[1].memory_gb),
    )
    assert (
        await problem_of(live.cluster().ListNodes(pb.ListNodesRequest(nodes=["x"])))
    ).code == Code.NOT_FOUND


@with_daemon()
async def test_nodes_are_drained_resumed_and_removed(live: Live) -> None:
    """The reply is the node after the command; removing a node that is up is refused with the remedy."""
    await live.node("n1")
    cluster = live.cluster("opa")
    problem = await problem_of(cluster.CommandNode(Node(node="n1", action=Node.ACTION_REMOVE)))
    assert (problem.code, "drain it first" in problem.text) == (Code.FAILED_PRECONDITION, True)
    node = await cluster.CommandNode(Node(node="n1", action=Node.ACTION_DRAIN))
    assert (node.state, node.drained, node.why) == (pb.NODE_STATE_DRAINING, True, "drain by opa")
    node = await cluster.CommandNode(Node(node="n1", action=Node.ACTION_RESUME))
    assert node.state == pb.NODE_STATE_UP
    node = await cluster.CommandNode(Node(node="n1", action=Node.ACTION_DRAIN, reason="its fan"))
    assert node.why == "drain by opa: its fan"
    problem = await problem_of(cluster.CommandNode(Node(node="n1", action=Node.ACTION_DRAIN, reason="\n")))
    assert (problem.code, problem.field) == (Code.INVALID_ARGUMENT, "reason")
    await cluster.CommandNode(Node(node="n1", action=Node.ACTION_DRAIN))
    assert (await cluster.CommandNode(Node(node="n1", action=Node.ACTION_REMOVE))).name == "n1"
    assert live.world.state.nodes == {}
    problem = await problem_of(cluster.CommandNode(Node(node="n1", action=Node.ACTION_DRAIN)))
    assert problem.code == Code.NOT_FOUND
    await live.node("n1")
    problem = await problem_of(cluster.CommandNode(Node(node="n1")))
    assert (problem.code, problem.field) == (Code.INVALID_ARGUMENT, "action")


@with_daemon()
async def test_the_policy_is_set_by_name_and_checked(live: Live) -> None:
    """The answer lists all policies; an unknown name or a wrong parameter is refused by its field."""
    cluster = live.cluster()
    assert "water_filling" in (await cluster.GetPolicy(pb.GetPolicyRequest())).available
    assert (await cluster.SetPolicy(pb.SetPolicyRequest(policy="las+packing"))).policy == "las+packing"
    assert live.world.state.settings.policy == "las+packing"
    for policy in (await cluster.GetPolicy(pb.GetPolicyRequest())).available:
        assert policy == (await cluster.SetPolicy(pb.SetPolicyRequest(policy=policy))).policy
    await cluster.SetPolicy(pb.SetPolicyRequest(policy="las+packing"))
    for policy in (
        "",
        "nonsense",
        "min_cost(premium=x)",
        "las+las+las",
        "__import__('os')",
        "(" * 5000,
        "(" * 900,
    ):
        problem = await problem_of(cluster.SetPolicy(pb.SetPolicyRequest(policy=policy)))
        assert (problem.code, problem.field) == (Code.INVALID_ARGUMENT, "policy"), policy[:20]
    assert live.world.state.settings.policy == "las+packing"


@with_daemon()
async def test_the_allocation_and_the_round_name_the_jobs(live: Live) -> None:
    """The replies have the shares of the allocation and the plan of the round; with `follow`, also its next change."""
    cluster = live.cluster()
    assert (await cluster.GetAllocation(pb.GetAllocationRequest())).number == 0
    await live.node("n1", gpus=2)
    await submitted(live, spec(rates={"v100": 5.0}))
    await live.run_job("1")
    allocation = await cluster.GetAllocation(pb.GetAllocationRequest())
    (share,) = allocation.shares
    assert (list(share.jobs), share.worker_type, share.gpus) == (["1"], "v100", 1)
    assert 0 < share.share <= 1
    assert share.rate == 5.0
    (plan,) = [each async for each in cluster.WatchRounds(pb.WatchRoundsRequest())]
    (run,) = plan.runs
    assert (run.job, len(plan.idle_gpus), plan.moved, plan.renewed) == ("1", 1, 1, 0)
    assert plan.ends.seconds - plan.starts.seconds in (359, 360)
    watch = cluster.WatchRounds(pb.WatchRoundsRequest(follow=True))
    assert plan == await watch.read()
    watch.cancel()


@with_daemon()
async def test_a_round_that_is_planned_while_the_first_is_being_read_is_not_missed(live: Live) -> None:
    """A follower gets every round that is planned after its answer was built, not after it was read."""
    await live.node("n1", gpus=2)
    ((_, _), (_, service), *_) = live.people.services()
    watch = service.WatchRounds(pb.WatchRoundsRequest(follow=True), None)
    assert (await anext(watch)).runs == []
    await submitted(live, spec())
    await live.run_job("1")
    async with asyncio.timeout(DEADLINE_S):
        assert [run.job for run in (await anext(watch)).runs] == ["1"]
    await watch.aclose()


@with_daemon()
async def test_a_reader_of_rounds_that_is_too_slow_must_begin_again(live: Live) -> None:
    """The reader gets ABORTED with a stable reason, rather than a gap that it cannot notice."""
    watch = live.cluster().WatchRounds(pb.WatchRoundsRequest(follow=True))
    await watch.read()
    # All of this happens in one turn of the loop, so that the reader cannot read meanwhile.
    for _ in range(feed.WAITING_MAX + 1):
        live.feed.append(live.world.now_s(), [])
    problem = await problem_of(watch.read())
    assert (problem.code, problem.reason) == (Code.ABORTED, "slow_reader")


@with_daemon()
async def test_estimated_rates_of_pairs_are_shown(live: Live) -> None:
    """A pair that the table lacks is listed with its estimate and the standard deviation; its other rows come first."""
    cluster, known = live.cluster(), ["a", "b", "c", "d"]

    def row(job_type: str, partner: str, rate: float) -> pb.Rate:
        return pb.Rate(job_type=job_type, gpus=1, worker_type="v100", steps_per_s=rate, with_job_type=partner)

    rows = [row(job_type, "", 10.0) for job_type in (*known, "new")]
    load = {job_type: 0.3 + 0.1 * i for i, job_type in enumerate(known)} | {"new": 0.55}
    pairs = [(a, b) for a in known for b in known] + [("new", "b"), ("b", "new")]
    rows += [row(a, b, 9.0 / (load[a] + load[b] + 0.3)) for a, b in pairs]
    await cluster.GiveRates(pb.GiveRatesRequest(rates=rows))
    listed = (await cluster.ListRates(pb.ListRatesRequest(job_type="new"))).rates
    assert [(rate.with_job_type, rate.source) for rate in listed] == [
        ("", "table"),
        ("b", "table"),
        *[(partner, "estimated") for partner in ("a", "c", "d", "new")],
    ]
    assert all(0 < rate.steps_per_s < 10.0 and rate.sd_steps_per_s > 0 for rate in listed[2:])
    assert not any(rate.sd_steps_per_s for rate in listed[:2])


@with_daemon()
async def test_prices_and_rates_are_given_and_shown(live: Live) -> None:
    """Figures are accepted as given; a pair takes both rates; the error about a wrong field has its name."""
    cluster = live.cluster()
    prices = await cluster.SetPrices(pb.SetPricesRequest(price_per_gpu_hour={"v100": 2.5}))
    assert dict(prices.price_per_gpu_hour) == {"v100": 2.5}

    def rate(**fields: object) -> pb.Rate:
        usual = {"job_type": "cnn", "gpus": 1, "worker_type": "v100", "steps_per_s": 5.0}
        return pb.Rate(**{**usual, **fields})  # type: ignore[arg-type]

    pair = [
        rate(with_job_type="lm", steps_per_s=4.0),
        rate(job_type="lm", with_job_type="cnn", steps_per_s=3.0),
    ]
    answer = await cluster.GiveRates(pb.GiveRatesRequest(rates=[rate(), *pair]))
    assert answer.rates == 3
    facts = [fact for _, fact in live.journal.read() if isinstance(fact, PricesSet | RatesGiven)]
    assert [fact.by for fact in facts] == ["ann", "ann"]
    rates = (await cluster.ListRates(pb.ListRatesRequest(job_type="cnn"))).rates
    assert [(row.with_job_type, row.steps_per_s, row.source) for row in rates] == [
        ("", 5.0, "table"),
        ("lm", 4.0, "table"),
    ]
    for call, field in (
        (cluster.SetPrices(pb.SetPricesRequest()), "price_per_gpu_hour"),
        (
            cluster.SetPrices(pb.SetPricesRequest(price_per_gpu_hour={"v100": float("nan")})),
            "price_per_gpu_hour.v100",
        ),
        (cluster.GiveRates(pb.GiveRatesRequest()), "rates"),
        (cluster.GiveRates(pb.GiveRatesRequest(rates=pair[:1])), "rates"),
        (cluster.GiveRates(pb.GiveRatesRequest(rates=[rate(), rate(gpus=0)])), "rates[1].gpus"),
        (cluster.GiveRates(pb.GiveRatesRequest(rates=[rate(job_type="")])), "rates[0].job_type"),
        (
            cluster.GiveRates(pb.GiveRatesRequest(rates=[rate(steps_per_s=float("inf"))])),
            "rates[0].steps_per_s",
        ),
    ):
        problem = await problem_of(call)
        assert (Code.INVALID_ARGUMENT, field) == (problem.code, problem.field)
