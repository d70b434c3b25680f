"""Credit of leases: the time of a round, less the time that is not used, and the cost at the current price."""

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
    """Return the decayed sum of the time that a bundle has received."""
    table = desk.core.state.shares
    row = table.row_of.get(Bundle(jobs, "v100", gpus))
    return 0.0 if row is None else float(table.received_s[row])


def ends_s(desk: Desk) -> float:
    """Return the end of the round."""
    return desk.core.state.round.ends_s


def advance(desk: Desk, now_s: float) -> None:
    """Advance the clock, and claim the facts and effects of that time."""
    desk.until(now_s)
    desk.settle()


def packed(desk_of: DeskOf) -> tuple[Desk, list[str]]:
    """Return a desk on which jobs 1 and 2 share the only GPU for a whole round, and their leases."""
    desk = desk_of(node("n1", 1), policy="las+packing")
    desk.submit(job(steps=1e6), job(steps=1e6, job_type="lm"))
    advance(desk, 8.0)
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
    advance(desk, starts_s + 60.0)
    desk.report(exits=(exited(lease, "failed"),))
    desk.settle()
    assert received_s(desk, "1") == pytest.approx(60.0)


def test_a_failing_job_is_credited_only_for_its_attempts(desk_of: DeskOf) -> None:
    """Seven attempts of five seconds are credited with half a minute, not with seven rounds; pauses with nothing."""
    desk = desk_of(node("n1", 1))
    (lease,) = desk.run(job(retries=20))
    for _ in range(6):
        advance(desk, desk.now_s + 5.0)
        desk.report(exits=(exited(lease, "failed"),))
        desk.settle()
        advance(desk, desk.job("1").again_s)
        desk.tell(desk.now_s, Woke(what="fill"))
        desk.settle()
        lease = desk.job("1").lease or ""
    assert desk.job("1").failures == 6
    advance(desk, desk.now_s + 5.0)
    desk.report(exits=(exited(lease, "failed"),))
    desk.settle()
    # The first attempt had been running for 8 s.
    assert received_s(desk, "1") == pytest.approx(8.0 + 7 * 5.0)


def test_the_rest_of_a_round_is_credited_to_the_partner_of_an_ended_job(desk_of: DeskOf) -> None:
    """A pair is credited once; when one job ends, the rest of the round is credited to the other alone."""
    desk, leases = packed(desk_of)
    starts_s = desk.core.state.round.starts_s
    alone_s = received_s(desk, "2")
    assert received_s(desk, "1", "2") == ROUND_S
    advance(desk, starts_s + 100.0)
    desk.report(exits=(exited(leases[0], "finished", 1000.0),))
    desk.settle()
    assert received_s(desk, "1", "2") == pytest.approx(100.0)
    assert received_s(desk, "2") == pytest.approx(alone_s + ROUND_S - 100.0)


def test_a_pair_that_ends_together_is_credited_until_then(desk_of: DeskOf) -> None:
    """The rest of the round is credited to neither."""
    desk, leases = packed(desk_of)
    advance(desk, desk.core.state.round.starts_s + 100.0)
    desk.report(exits=tuple(exited(lease) for lease in leases))
    desk.settle()
    assert received_s(desk, "1", "2") == pytest.approx(100.0)
    assert received_s(desk, "1") == received_s(desk, "2") == 0.0


def test_when_a_partner_joins_the_rest_of_the_round_is_credited_to_the_pair(desk_of: DeskOf) -> None:
    """The rest of the round moves from the job alone to the pair: no second is credited twice."""
    desk = desk_of(node("n1", 1), policy="las+packing")
    desk.run(job(steps=1e6))
    starts_s = desk.core.state.round.starts_s
    desk.submit(job(steps=1e6, job_type="lm"))
    before_s, now_s = received_s(desk, "1"), starts_s + 90.0
    advance(desk, now_s - 1.0)
    desk.tell(now_s, Woke(what="tick"))
    desk.settle()
    # The answer comes ten seconds before the boundary.
    advance(desk, ends_s(desk) - 9.0)
    assert desk.holding(desk.job("1").lease or "").bundle.jobs == ("1", "2")
    joined_s = desk.holding(desk.job("2").lease or "").granted_s
    rest_s = ends_s(desk) - joined_s
    assert received_s(desk, "1") == pytest.approx(before_s - rest_s)
    assert received_s(desk, "1", "2") == pytest.approx(rest_s)


def test_a_waiting_lease_has_received_nothing_yet(desk_of: DeskOf) -> None:
    """A lease that waits for the exit of others is credited from the moment it has its GPUs."""
    desk = desk_of(node("n1", 1), stay_rounds=0.0)
    desk.run(job(steps=1e6))
    desk.submit(job(steps=1e6), job(steps=1e6))
    advance(desk, 359.0)
    waiting = next(h for h in desk.core.state.leases.values() if h.waits_for)
    name, starts_s = waiting.lease.job, desk.core.state.round.starts_s
    assert received_s(desk, name) == 0.0
    (leaving,) = waiting.waits_for
    advance(desk, starts_s + 25.0)
    desk.report(exits=(exited(leaving, steps=60.0),))
    desk.settle()
    assert received_s(desk, name) == pytest.approx(ROUND_S - 25.0)


def test_a_lease_that_a_silent_node_lost_is_credited_up_to_the_hello(desk_of: DeskOf) -> None:
    """If the hello of a returning node lacks a lease, the lease closes then and is credited until then."""
    desk = desk_of(node("n1", 1), lease_margin_s=1000.0)
    (lease,) = desk.run(job(steps=1e6))
    starts_s = desk.core.state.round.starts_s
    advance(desk, starts_s + 100.0)
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
        advance(desk, began_s + after_s)
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
    advance(desk, began_s + 100.0)
    desk.report(exits=(exited(leases[0], ran_s=100.0),))
    desk.settle()
    assert desk.job("1").cost_usd == pytest.approx(0.5)
    advance(desk, began_s + 150.0)
    desk.report(exits=(exited(leases[1], ran_s=150.0),))
    desk.settle()
    assert desk.job("2").cost_usd == pytest.approx(0.5 + 0.5)


def test_a_cost_limit_is_reviewed_when_prices_change(desk_of: DeskOf) -> None:
    """At a higher price, the job reaches its limit earlier than was expected before."""
    desk = desk_of(node("n1", 1))
    desk.tell(0, SetPrices(price_per_gpu_hour={"v100": 1.0}))
    desk.settle()
    desk.run(job(steps=1e9, max_cost=2.0))
    began_s = desk.now_s
    advance(desk, began_s + 3600.0)
    desk.tell(desk.now_s, SetPrices(price_per_gpu_hour={"v100": 100.0}))
    desk.settle()
    advance(desk, began_s + 3600.0 + 35.0)
    assert desk.job("1").state == JobState.RUNNING
    advance(desk, began_s + 3600.0 + 37.0)
    assert desk.job("1").state == JobState.FAILED
    assert " 2;" in desk.job("1").why


# -------------------------------------------------------------------------------------- sent, or not sent


def test_a_lease_that_was_never_sent_closes_at_once(desk_of: DeskOf) -> None:
    """A lease granted and recalled in one batch closes at once, since no node will report its exit."""
    desk = desk_of(node("n1", 1))
    (lease,) = desk.run(job())
    desk.submit(job())
    desk.report(exits=(exited(lease, "finished", 1000.0),))
    desk.settle()
    desk.tell(desk.now_s, Woke(what="fill"), JobCommand(job="2", action="hold"))
    (granted,) = desk.expect(GpusFilled).granted
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
    advance(desk, 8.0)
    lease = desk.job("1").lease or ""
    desk.tell(desk.now_s, JobCommand(job="1", action="hold"))
    desk.settle()
    assert desk.core.state.holders == {"n1:0": (lease,)}


# ------------------------------------------------------------------------------------------------- elastic


def test_growing_and_shrinking_use_up_no_preemptions(desk_of: DeskOf) -> None:
    """A change of width is no preemption, so a job that allows none may grow and shrink."""
    desk = desk_of(node("n1", 4))
    (lease,) = desk.run(job(steps=1e6, gpus=2, gpus_min=1, gpus_max=4, retries_preemption=0))
    assert desk.holding(lease).bundle.gpus == 4
    desk.submit(job(gpus=2, steps=1e6))
    advance(desk, 719.0)
    entry = desk.job("1")
    assert entry.lease not in (None, lease)
    desk.report(exits=(exited(lease),))
    desk.settle()
    assert (entry.state, entry.preemptions) == (JobState.RUNNING, 0)
    assert desk.holding(entry.lease or "").bundle.gpus < 4


def test_losing_all_gpus_is_a_preemption(desk_of: DeskOf) -> None:
    """A job that gives up its GPUs and gets no others is preempted."""
    desk = desk_of(node("n1", 1), stay_rounds=0.0)
    (lease,) = desk.run(job(steps=1e6))
    desk.submit(job(steps=1e6), job(steps=1e6))
    advance(desk, 359.0)
    desk.report(exits=(exited(lease),))
    desk.settle()
    assert desk.job("1").preemptions == 1


def test_a_round_is_credited_once_to_each_bundle(desk_of: DeskOf) -> None:
    """A round in which the same leases continue adds only its length to the decayed sum."""
    desk = desk_of(node("n1", 1))
    desk.run(job(steps=1e6))
    decay = desk.core.state.settings.decay
    desk.until(352)
    desk.tell(358, Woke(what="plan"))
    desk.expect(RoundPlanned)
    desk.settle()
    assert received_s(desk, "1") == pytest.approx(ROUND_S * (1 + decay))
