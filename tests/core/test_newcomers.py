"""Jobs that came after the last allocation have no shares yet; idle GPUs go to the earliest of them."""

from __future__ import annotations

from collections.abc import Callable

from scheduler.core.planning import round_inputs
from scheduler.core.planning.kinds import Kinds
from scheduler.core.state import SchedulerState
from scheduler.rounds.inputs import Candidates
from tests.support.desk import Desk, exited, job, node

DeskOf = Callable[..., Desk]


def crowded(desk_of: DeskOf, *more: str) -> Desk:
    """Return a desk on which job 1 has the only v100, other types have a free GPU, and jobs 2 to 9 are newcomers."""
    desk = desk_of(node("n1", 1), *(node(f"m{i}", 1, kind) for i, kind in enumerate(more)))
    desk.run(job(steps=1e6))
    desk.submit(*[job()] * 8)
    return desk


def test_the_next_in_line_gets_the_idle_gpu(desk_of: DeskOf) -> None:
    """Each time a job ends in the middle of a round, the next in line gets its GPU."""
    desk = crowded(desk_of)
    came = []
    for at_s in range(20, 100, 10):
        (lease,) = desk.core.state.leases
        desk.until(at_s)
        desk.report(exits=(exited(lease, "finished", 1000.0),))
        desk.settle()
        desk.until(at_s + 1.0)
        (holding,) = desk.core.state.leases.values()
        came.append(holding.lease.job)
    assert came == ["2", "3", "4", "5", "6", "7", "8", "9"]


def test_the_order_of_arrival_outlives_a_restart(desk_of: DeskOf) -> None:
    """A restored scheduler has the same order; which worker type comes first for a job is random."""
    desk = crowded(desk_of, "k80")
    inputs = round_inputs.in_mid_round(desk.core.state, Kinds(), desk.now_s)
    columns = inputs.candidates
    new = [row for row, bundle in enumerate(columns.bundles) if bundle.jobs != ("1",)]
    in_line = [columns.bundles[row] for row in sorted(new, key=lambda row: int(columns.columns.tie[row]))]
    assert [bundle.jobs[0] for bundle in in_line] == [name for name in "23456789" for _ in range(2)]
    assert {bundle.worker_type for bundle in in_line[::2]} == {"v100", "k80"}
    restored = SchedulerState.restore(desk.core.state.snapshot())
    replanned = round_inputs.in_mid_round(restored, Kinds(), desk.now_s).candidates
    assert (replanned.bundles, replanned.columns.tie.tolist()) == (
        columns.bundles,
        columns.columns.tie.tolist(),
    )


def test_rounds_of_one_allocation_share_their_columns(desk_of: DeskOf) -> None:
    """The columns are those of the last round until a job comes; columns with an ended job are not used."""
    desk = crowded(desk_of)
    state, kinds = desk.core.state, Kinds()

    def candidates() -> Candidates:
        return round_inputs.at_boundary(state, kinds, desk.now_s, desk.now_s).candidates

    first = candidates()
    assert candidates().columns is first.columns
    assert candidates().terms is first.terms
    (lease,) = state.leases
    desk.report(exits=(exited(lease, "finished", 1000.0),))
    (row,) = (row for row, bundle in enumerate(first.bundles) if bundle.jobs == ("1",))
    later = candidates()
    assert first.terms.may_run[row]
    assert not later.terms.may_run[later.bundles.index(first.bundles[row])]
    desk.settle()
    desk.submit(job())
    assert len(candidates()) == len(later) + 1
