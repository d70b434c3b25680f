"""The matrix: recent GPU time due and received, by job or tenant and worker type."""

from __future__ import annotations

from collections import defaultdict

import grpc
import pytest

from protos.gavel.v1 import cluster_pb2 as pb
from protos.gavel.v1 import jobs_pb2
from scheduler.core.apply import apply
from scheduler.core.state import SchedulerState
from scheduler.live.api.matrix import Matrix
from tests.live.observe.test_ledger import played
from tests.support.live import Live, problem_of, spec, with_daemon

Code = grpc.StatusCode


def in_the_middle(seed: int) -> SchedulerState:
    """Return the state in the middle of a story."""
    state, records = SchedulerState(), played(seed)
    for now_s, facts in records[: len(records) // 2]:
        for fact in facts:
            apply(state, now_s, fact)
    return state


def counted(state: SchedulerState) -> dict[tuple[str, str], tuple[float, float, int]]:
    """Return the GPU seconds due and received, and the GPUs in use, by job and worker type, counted one by one."""
    sums: dict[tuple[str, str], list[float]] = defaultdict(lambda: [0.0, 0.0, 0])
    table = state.shares
    for bundle, entitled_s, received_s in zip(table.bundles, table.entitled_s, table.received_s, strict=True):
        for job in bundle.jobs:
            entry = sums[job, bundle.worker_type]
            entry[0] += entitled_s * bundle.gpus
            entry[1] += received_s * bundle.gpus
    for holding in state.leases.values():
        if holding.started_s is not None:
            sums[holding.lease.job, holding.bundle.worker_type][2] += len(holding.lease.gpus)
    return {
        key: (due_s, received_s, int(gpus))
        for key, (due_s, received_s, gpus) in sums.items()
        if key[0] in state.active and (max(due_s, received_s) > 1e-3 or gpus)
    }


@pytest.mark.parametrize("seed", range(8200, 8204))
def test_the_matrix_agrees_with_a_second_count(seed: int) -> None:
    """Each job that has not ended has its sums, and a tenant those of its jobs; rows furthest behind come first."""
    state = in_the_middle(seed)
    rows = list(Matrix(state, "", by_tenant=False).rows(None))
    cells = {
        (row.job, cell.worker_type): (cell.due_s, cell.received_s, cell.gpus)
        for _, row in rows
        for cell in row.cells
    }
    expected = counted(state)
    assert expected
    assert cells.keys() == expected.keys()
    for key, cell in cells.items():
        assert cell == pytest.approx(expected[key])
    assert [place.behind_s for place, _ in rows] == sorted(
        [place.behind_s for place, _ in rows], reverse=True
    )
    by_tenant = [row for _, row in Matrix(state, "", by_tenant=True).rows(None)]
    assert sum(cell.due_s for row in by_tenant for cell in row.cells) == pytest.approx(
        sum(due_s for due_s, _, _ in expected.values())
    )
    for place, row in rows:
        assert row.job not in [later.job for _, later in Matrix(state, "", by_tenant=False).rows(place)]


async def rows_of(live: Live, **options: object) -> list[pb.Matrix.Row]:
    """Return all rows, page by page."""
    rows: list[pb.Matrix.Row] = []
    token = ""
    while True:
        page = await live.cluster().GetMatrix(pb.GetMatrixRequest(page_token=token, **options))  # type: ignore[arg-type]
        rows += page.rows
        if not (token := page.next_page_token):
            return rows


@with_daemon()
async def test_pages_and_tenants(live: Live) -> None:
    """Pages have each row once; a tenant stands for those below it."""
    assert await rows_of(live) == []
    await live.node("n1", gpus=4)
    specs = [spec(job_type="cnn", tenant=tenant) for tenant in ("org/a", "org/a", "org/b", "orgs")]
    await live.jobs().SubmitJobs(jobs_pb2.SubmitJobsRequest(specs=specs))
    for job in ("1", "2", "3", "4"):
        await live.run_job(job)
    rows = await rows_of(live, page_size=1)
    assert sorted(row.job for row in rows) == ["1", "2", "3", "4"]
    assert rows == await rows_of(live)
    assert [[(cell.worker_type, cell.gpus) for cell in row.cells] for row in rows] == [[("v100", 1)]] * 4
    assert {row.job for row in await rows_of(live, tenant="org/")} == {"1", "2", "3"}
    tenants = await rows_of(live, by_tenant=True, page_size=1)
    assert sorted((row.tenant, row.jobs, row.job) for row in tenants) == [
        ("org/a", 2, ""),
        ("org/b", 1, ""),
        ("orgs", 1, ""),
    ]
    assert await rows_of(live, tenant="org/none") == []


@with_daemon()
async def test_bad_pages_are_refused(live: Live) -> None:
    """The error names the field; a token of another list is refused."""
    for fields, field in (({"page_size": 10_001}, "page_size"), ({"page_token": "x"}, "page_token")):
        problem = await problem_of(live.cluster().GetMatrix(pb.GetMatrixRequest(**fields)))  # type: ignore[arg-type]
        assert (problem.code, problem.field) == (Code.INVALID_ARGUMENT, field)
