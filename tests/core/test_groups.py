"""Jobs whose GPUs must be together on one node: where they run, why they wait, and what changes it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from scheduler.core.effects import Reply
from scheduler.core.messages import GiveRates, JobCommand, SubmitJobs, UpdateJob
from scheduler.core.planning.kinds import Kinds
from scheduler.core.planning.round_inputs import at_boundary
from scheduler.explain import explain, render
from scheduler.model.changes import JobChanges
from scheduler.model.launch import Launch, Terminal
from scheduler.model.lease import nodes_of
from tests.support.desk import Desk, job, node
from tests.support.explained import ended
from tests.support.wording import Wording

DeskOf = Callable[..., Desk]
INTERACTIVE = Launch(command=("sh",), terminal=Terminal())


def two_by_two(desk_of: DeskOf, **facts: object) -> Desk:
    """Return a desk with two nodes of four GPUs; a job holds two of each, and the others are free."""
    desk = desk_of(node(gpus=4), node("n2", gpus=4))
    leases = desk.run(*[job(gpus=2, steps=1e6, **facts) for _ in range(4)])
    nodes = [nodes_of(desk.holding(lease).lease.gpus) for lease in leases]
    for name in ("n1", "n2"):
        ended(desk, leases[nodes.index((name,))], "finished", 1e6, name)
    desk.until(20)
    return desk


def ways(desk: Desk, name: str) -> list[tuple[str, int]]:
    """Return the worker types and widths among which a job's policy chooses."""
    kinds = Kinds()
    kinds.refresh(desk.core.state)
    rows = kinds.ways_for(desk.core.state, desk.job(name))
    return [(kinds.worker_types[row], gpus) for row, gpus in zip(rows.worker_type, rows.gpus, strict=True)]


def test_types_with_smaller_nodes_are_no_way_to_run(desk_of: DeskOf) -> None:
    """The policy is not asked to share what no node can give; `explain` says which groups would fit there."""
    desk = desk_of(node(gpus=4), node("n2", gpus=4), node("k1", 8, "k80"))
    whole = job(job_type="new", gpus=8, gpus_together=8, preemptible=False)
    _, name = desk.submit(whole, whole)
    desk.until(30)
    assert ways(desk, name) == [("k80", 8)]
    changes = explain(desk.core.state, name).would_change
    assert [change.text for change in changes if change.what == "gpus_together"] == [
        "gpus_together 4 would fit now (v100)"
    ]


def test_an_elastic_job_has_whole_groups_only(desk_of: DeskOf) -> None:
    """Each width is a number of groups that the nodes can give: nodes of three GPUs give one pair each."""
    desk = desk_of(node(gpus=3), node("n2", gpus=3))
    (name,) = desk.submit(job(job_type="new", gpus=2, gpus_max=6, gpus_together=2))
    assert ways(desk, name) == [("v100", 2), ("v100", 4)]


def test_a_group_waits_for_one_node(desk_of: DeskOf, wording: Wording) -> None:
    """In mid-round it does not start on two nodes; its explanation says so, and the start that it promises is kept."""
    desk = two_by_two(desk_of)
    (name,) = desk.submit(job(gpus=4, gpus_together=4))
    desk.until(30)
    answer = explain(desk.core.state, name)
    wording(render(answer))
    assert (answer.reason, answer.start_basis) == ("fragmented", "next_round")
    assert answer.expected_start_s is not None
    desk.until(answer.expected_start_s)
    holding = desk.holding(desk.job(name).lease or "")
    assert len(nodes_of(holding.lease.gpus)) == 1


def test_a_group_waits_for_jobs_that_cannot_move(desk_of: DeskOf, wording: Wording) -> None:
    """The start is when enough jobs of one node end; groups of half the size would fit at once."""
    desk = two_by_two(desk_of, preemptible=False)
    (name,) = desk.submit(job(gpus=4, gpus_together=4))
    desk.until(30)
    answer = explain(desk.core.state, name)
    wording(render(answer))
    assert (answer.reason, answer.start_basis) == ("fragmented", "jobs_end")
    assert "gpus_together" in {change.what for change in answer.would_change}
    desk.until(800)
    assert desk.job(name).lease is None


def test_pairs_that_are_not_there_are_waited_for(desk_of: DeskOf, wording: Wording) -> None:
    """Three free GPUs on each of two nodes are two pairs and two GPUs over."""
    desk = desk_of(node(gpus=4), node("n2", gpus=4))
    desk.run(*[job(nodes=(name,), preemptible=False, steps=1e6) for name in ("n1", "n2")])
    (name,) = desk.submit(job(job_type="new", gpus=6, gpus_together=2))
    desk.until(30)
    wording(explain(desk.core.state, name).text)


def test_smaller_groups_start_where_larger_ones_wait(desk_of: DeskOf) -> None:
    """An update takes effect with the next allocation, as a change of the number of GPUs does."""
    desk = two_by_two(desk_of, preemptible=False)
    (name,) = desk.submit(job(gpus=4, gpus_together=4))
    desk.until(400)
    assert desk.job(name).lease is None
    desk.tell(400, UpdateJob(call="c", job=name, changes=JobChanges(gpus_together=2)))
    assert desk.expect(Reply).code == ""
    desk.until(800)
    assert nodes_of(desk.holding(desk.job(name).lease or "").lease.gpus) == ("n1", "n2")
    assert explain(desk.core.state, name).updates[0].text == "gpus_together 4 → 2"


@pytest.mark.parametrize("changes", [{"gpus": 3}, {"gpus_together": 3}, {"gpus_together": 8, "gpus": 8}])
def test_an_update_must_fit_too(desk_of: DeskOf, changes: dict[str, int]) -> None:
    """Numbers that are no multiples, and groups larger than every node, are refused."""
    desk = desk_of(node(gpus=4), node("n2", gpus=4))
    desk.submit(job(gpus=4, gpus_together=2))
    desk.tell(1, UpdateJob(call="c", job="1", changes=JobChanges(**changes)))
    assert desk.expect(Reply).code == "invalid"
    desk.all_claimed()


def test_a_running_job_keeps_its_groups(desk_of: DeskOf) -> None:
    """They decide where it runs, so they cannot change meanwhile."""
    desk = desk_of(node())
    desk.run(job(gpus=2))
    desk.tell(desk.now_s, UpdateJob(call="c", job="1", changes=JobChanges(gpus_together=2)))
    assert desk.expect(Reply).code == "refused"
    desk.all_claimed()


def test_an_interactive_job_runs_on_one_node(desk_of: DeskOf) -> None:
    """It waits for one, and is refused if no node has so many GPUs."""
    desk = two_by_two(desk_of, preemptible=False)
    (name,) = desk.submit(job(gpus=4, preemptible=False, launch=INTERACTIVE))
    desk.until(800)
    assert desk.job(name).lease is None
    assert explain(desk.core.state, name).reason == "fragmented"
    desk.tell(800, JobCommand(job="1", action="cancel"), JobCommand(job="2", action="cancel"))
    desk.settle()
    desk.tell(801, SubmitJobs(call="c", specs=(job(gpus=5, launch=INTERACTIVE),)))
    assert desk.expect(Reply, code="invalid").result == {"field": "gpus"}
    desk.all_claimed()


def test_packed_jobs_are_as_close_as_both_need(desk_of: DeskOf) -> None:
    """A column of two jobs has the smallest granule that suits both."""
    desk = desk_of(node(gpus=2), node("n2", gpus=2), policy="las+packing")
    desk.tell(0, GiveRates(pairs=[("v100", "cnn", "lm", 2, 18.0, 7.0)]))
    desk.settle()
    desk.submit(job(gpus=2, gpus_together=2), job(gpus=2, job_type="lm"), job(gpus=2), job(gpus=2))
    desk.until(800)
    columns = at_boundary(desk.core.state, Kinds(), desk.now_s, desk.now_s).candidates.columns
    granules = {bundle.jobs: columns.granules.get(row, 1) for row, bundle in enumerate(columns.bundles)}
    assert {jobs: granule for jobs, granule in granules.items() if granule > 1} == {("1",): 2, ("1", "2"): 2}
    assert ("2", "3") in granules
