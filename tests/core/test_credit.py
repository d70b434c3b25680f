"""What leases are credited with: received time, taken back when it is not used, and cost, which follows the price."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from scheduler.core.facts import GpusFilled, RoundPlanned
from scheduler.core.messages import JobCommand, NodeHello, NodeSilent, SetPrices, Woke
from scheduler.model.jobs import JobState
from scheduler.model.lease import Bundle
from tests.support.desk import Desk, exited, job, node

DeskOf = Callable[..., Desk]
ROUND_S = 360.0


def received_s(desk: Desk, *jobs: str, gpus: int = 1) -> float:
    """The time that a bundle has received of late."""
    table = desk.core.state.shares
    row = table.row_of.get(Bundle(jobs, "v100", gpus))
    return 0.0 if row is None else float(table.received_s[row])


def ends_s(desk: Desk) -> float:
    """The end of the round."""
    return desk.core.state.round.ends_s


def at(desk: Desk, now_s: float) -> None:
    """Let time pass, and claim its facts and effects."""
    desk.until(now_s)
    desk.settle()


def packed(desk_of: DeskOf) -> tuple[Desk, list[str]]:
    """Jobs 1 and 2 share the only GPU for a whole round."""
    desk = desk_of(node("n1", 1), policy="las+packing")
    desk.submit(job(steps=1e6), job(steps=1e6, job_type="lm"))
    at(desk, 8.0)
    leases = [desk.job(name).lease or "" for name in ("1", "2")]
    desk.report(started=tuple(leases))
    desk.settle()
    assert desk.holding(leases[0]).bundle.jobs == ("1", "2")
    return desk, leases


# -------------------------------------------------------------------------------------------- received time


def test_a_lease_that_ends_early_gives_back_what_it_did_not_use(desk_of: DeskOf) -> None:
    """A whole round is credited when it is planned; a job that ends after a minute has received a minute."""
    desk = desk_of(node())
    (lease,) = desk.run(job(retries=5))
    assert received_s(desk, "1") == ROUND_S
    starts_s = desk.core.state.round.starts_s
    at(desk, starts_s + 60.0)
    desk.report(exits=(exited(lease, "failed"),))
    desk.settle()
    assert received_s(desk, "1") == pytest.approx(60.0)


def test_a_job_that_fails_again_and_again_is_not_well_served(desk_of: DeskOf) -> None:
    """Seven attempts of five seconds are half a minute of GPU time, not seven rounds; pauses are credited to no job."""
    desk = desk_of(node("n1", 1))
    (lease,) = desk.run(job(retries=20))
    for _ in range(6):
        at(desk, desk.now_s + 5.0)
        desk.report(exits=(exited(lease, "failed"),))
        desk.settle()
        at(desk, desk.job("1").again_s)
        desk.tell(desk.now_s, Woke(what="fill"))
        desk.settle()
        lease = desk.job("1").lease or ""
    assert desk.job("1").failures == 6
    at(desk, desk.now_s + 5.0)
    desk.report(exits=(exited(lease, "failed"),))
    desk.settle()
    # The first attempt had been running for 8 s.
    assert received_s(desk, "1") == pytest.approx(8.0 + 7 * 5.0)


def test_the_partner_of_a_pair_goes_on_alone_with_the_time_that_is_left(desk_of: DeskOf) -> None:
    """A pair is credited once; when one job ends, the rest of the round is credited to the other alone."""
    desk, leases = packed(desk_of)
    starts_s = desk.core.state.round.starts_s
    alone_s = received_s(desk, "2")
    assert received_s(desk, "1", "2") == ROUND_S
    at(desk, starts_s + 100.0)
    desk.report(exits=(exited(leases[0], "finished", 1000.0),))
    desk.settle()
    assert received_s(desk, "1", "2") == pytest.approx(100.0)
    assert received_s(desk, "2") == pytest.approx(alone_s + ROUND_S - 100.0)


def test_a_pair_that_ends_at_once_has_received_only_until_then(desk_of: DeskOf) -> None:
    """The rest of the round is credited to neither."""
    desk, leases = packed(desk_of)
    at(desk, desk.core.state.round.starts_s + 100.0)
    desk.report(exits=tuple(exited(lease) for lease in leases))
    desk.settle()
    assert received_s(desk, "1", "2") == pytest.approx(100.0)
    assert received_s(desk, "1") == received_s(desk, "2") == 0.0


def test_a_partner_that_joins_takes_over_what_is_left_of_the_round(desk_of: DeskOf) -> None:
    """The time alone ends when the time together begins: no second is credited twice."""
    desk = desk_of(node("n1", 1), policy="las+packing")
    desk.run(job(steps=1e6))
    starts_s = desk.core.state.round.starts_s
    desk.submit(job(steps=1e6, job_type="lm"))
    before_s, now_s = received_s(desk, "1"), starts_s + 90.0
    at(desk, now_s - 1.0)
    desk.tell(now_s, Woke(what="tick"))
    desk.settle()
    # The answer comes ten seconds before the boundary.
    at(desk, ends_s(desk) - 9.0)
    assert desk.holding(desk.job("1").lease or "").bundle.jobs == ("1", "2")
    joined_s = desk.holding(desk.job("2").lease or "").granted_s
    left_s = ends_s(desk) - joined_s
    assert received_s(desk, "1") == pytest.approx(before_s - left_s)
    assert received_s(desk, "1", "2") == pytest.approx(left_s)


def test_a_waiting_lease_has_received_nothing_yet(desk_of: DeskOf) -> None:
    """A lease that waits for the exit of others is credited from when it has its GPUs."""
    desk = desk_of(node("n1", 1), stay_rounds=0.0)
    desk.run(job(steps=1e6))
    desk.submit(job(steps=1e6), job(steps=1e6))
    at(desk, 359.0)
    waiting = next(h for h in desk.core.state.leases.values() if h.waits_for)
    name, starts_s = waiting.lease.job, desk.core.state.round.starts_s
    assert received_s(desk, name) == 0.0
    (leaving,) = waiting.waits_for
    at(desk, starts_s + 25.0)
    desk.report(exits=(exited(leaving, steps=60.0),))
    desk.settle()
    assert received_s(desk, name) == pytest.approx(ROUND_S - 25.0)


def test_a_silent_node_that_is_back_is_credited_for_the_round_that_was_planned_without_it(
    desk_of: DeskOf,
) -> None:
    """A lease that the returning node does not hold is credited up to the hello."""
    desk = desk_of(node("n1", 1), lease_margin_s=1000.0)
    (lease,) = desk.run(job(steps=1e6))
    starts_s = desk.core.state.round.starts_s
    at(desk, starts_s + 100.0)
    desk.tell(desk.now_s, NodeSilent(node="n1"))
    desk.settle()
    desk.tell(desk.now_s + 20.0, NodeHello(spec=node("n1", 1), held=()))
    desk.settle()
    assert lease not in desk.core.state.leases
    assert received_s(desk, "1") == pytest.approx(120.0)


# ----------------------------------------------------------------------------------------------------- cost


def test_a_price_counts_from_when_it_changes(desk_of: DeskOf) -> None:
    """An hour at 2 and half an hour at 4 are 4, whatever the price is when the lease closes."""
    desk = desk_of(node("n1", 1))
    desk.tell(0, SetPrices(price_per_gpu_hour={"v100": 2.0}))
    desk.settle()
    (lease,) = desk.run(job(steps=1e6))
    began_s = desk.now_s
    for after_s, price in ((3600.0, 4.0), (5400.0, 100.0)):
        at(desk, began_s + after_s)
        desk.tell(desk.now_s, SetPrices(price_per_gpu_hour={"v100": price}))
        desk.settle()
    desk.report(exits=(exited(lease, ran_s=5400.0),))
    desk.settle()
    assert desk.job("1").cost_usd == pytest.approx(2.0 + 2.0)


def test_packed_jobs_pay_half_while_both_are_there(desk_of: DeskOf) -> None:
    """Each pays half of the GPU's price for the time together, and all of it for the time alone."""
    desk, leases = packed(desk_of)
    desk.tell(desk.now_s, SetPrices(price_per_gpu_hour={"v100": 36.0}))
    desk.settle()
    began_s = desk.now_s
    at(desk, began_s + 100.0)
    desk.report(exits=(exited(leases[0], ran_s=100.0),))
    desk.settle()
    assert desk.job("1").cost_usd == pytest.approx(0.5)
    at(desk, began_s + 150.0)
    desk.report(exits=(exited(leases[1], ran_s=150.0),))
    desk.settle()
    assert desk.job("2").cost_usd == pytest.approx(0.5 + 0.5)


def test_a_cost_limit_is_reviewed_when_prices_change(desk_of: DeskOf) -> None:
    """At the new price the job reaches its limit at another time than was expected."""
    desk = desk_of(node("n1", 1))
    desk.tell(0, SetPrices(price_per_gpu_hour={"v100": 1.0}))
    desk.settle()
    desk.run(job(steps=1e9, max_cost=2.0))
    began_s = desk.now_s
    at(desk, began_s + 3600.0)
    desk.tell(desk.now_s, SetPrices(price_per_gpu_hour={"v100": 100.0}))
    desk.settle()
    at(desk, began_s + 3600.0 + 35.0)
    assert desk.job("1").state == JobState.RUNNING
    at(desk, began_s + 3600.0 + 37.0)
    assert desk.job("1").state == JobState.FAILED
    assert " 2;" in desk.job("1").why


# -------------------------------------------------------------------------------------- sent, or not sent


def test_a_lease_that_was_never_sent_is_gone_at_once(desk_of: DeskOf) -> None:
    """Granted and recalled by one batch: no node will ever report its exit, so it does not wait to lapse."""
    desk = desk_of(node("n1", 1))
    (lease,) = desk.run(job())
    desk.submit(job())
    desk.report(exits=(exited(lease, "finished", 1000.0),))
    desk.settle()
    desk.tell(desk.now_s, Woke(what="fill"), JobCommand(job="2", action="hold"))
    (granted,) = desk.claim(GpusFilled).granted
    assert desk.job("2").state == JobState.HELD
    assert desk.core.state.leases == {}
    assert desk.core.state.holders == {}
    assert received_s(desk, "2") == 0.0
    assert all(granted.id not in str(effect) for effect in desk.effects if "SendLeases" in str(effect))
    desk.settle()


def test_a_lease_that_was_sent_waits_for_its_exit(desk_of: DeskOf) -> None:
    """The node may have started it by now, so the GPU is free only when the node reports the exit."""
    desk = desk_of(node("n1", 1))
    desk.submit(job())
    at(desk, 8.0)
    lease = desk.job("1").lease or ""
    desk.tell(desk.now_s, JobCommand(job="1", action="hold"))
    desk.settle()
    assert desk.core.state.holders == {"n1:0": (lease,)}


# ------------------------------------------------------------------------------------------------- elastic


def test_growing_and_shrinking_use_up_no_preemptions(desk_of: DeskOf) -> None:
    """A job that allows no preemption may change its width: it keeps its turn."""
    desk = desk_of(node("n1", 4))
    (lease,) = desk.run(job(steps=1e6, gpus=2, gpus_min=1, gpus_max=4, retries_preemption=0))
    assert desk.holding(lease).bundle.gpus == 4
    desk.submit(job(gpus=2, steps=1e6))
    at(desk, 719.0)
    entry = desk.job("1")
    assert entry.lease not in (None, lease)
    desk.report(exits=(exited(lease),))
    desk.settle()
    assert (entry.state, entry.preemptions) == (JobState.RUNNING, 0)
    assert desk.holding(entry.lease or "").bundle.gpus < 4


def test_losing_all_gpus_is_a_preemption(desk_of: DeskOf) -> None:
    """A job that gives its GPUs up and gets no others has lost its turn."""
    desk = desk_of(node("n1", 1), stay_rounds=0.0)
    (lease,) = desk.run(job(steps=1e6))
    desk.submit(job(steps=1e6), job(steps=1e6))
    at(desk, 359.0)
    desk.report(exits=(exited(lease),))
    desk.settle()
    assert desk.job("1").preemptions == 1


def test_a_round_is_credited_once_to_each_bundle(desk_of: DeskOf) -> None:
    """A round planned while everything runs on adds just its length to the decayed sum."""
    desk = desk_of(node("n1", 1))
    desk.run(job(steps=1e6))
    decay = desk.core.state.settings.decay
    desk.until(352)
    desk.tell(358, Woke(what="plan"))
    desk.claim(RoundPlanned)
    desk.settle()
    assert received_s(desk, "1") == pytest.approx(ROUND_S * (1 + decay))
