"""Facts as bytes: they are read back unchanged, and facts that could not be read back are not written."""

from __future__ import annotations

from typing import get_args

import msgspec
import pytest

from scheduler.core.accounts.cached import CachedData
from scheduler.core.facts import (
    AllocationAdopted,
    AnyFact,
    CheckpointSaved,
    Configured,
    DataCached,
    DataNamed,
    EpochStarted,
    Fact,
    GpusWithheld,
    JobMoved,
    JobsForgotten,
    JobSubmitted,
    LeaseClosed,
    LeaseRecalled,
    NodeJoined,
    PricesSet,
    RecordsLost,
    RoundPlanned,
)
from scheduler.core.messages import Exit, Shares
from scheduler.journal.codec import decode_facts, encode_facts, record_crc, snapshot_crc
from scheduler.journal.errors import Unwritable
from scheduler.model.cluster import NodeSpec
from scheduler.model.jobs import JobSpec, Move
from scheduler.model.launch import Launch
from scheduler.model.lease import Bundle, Lease
from scheduler.model.settings import Settings
from tests.support.wording import Wording

SHARES = Shares(
    jobs=("1",), worker_types=("v100",), first=[0], second=[-1], worker_type=[0], gpus=[1], share=[1.0]
)
LAUNCH = Launch(command=("a", "b"), env={"A": "1"}, unknown={"argv": ["a", 1], "script": 3})
LEASE = Lease("1", "1", Bundle(("1",), "v100", 1), 1, 1, ("n:0",), 1, 360.0)


@pytest.mark.parametrize(
    "fact",
    [
        JobSubmitted(
            job="1",
            spec=JobSpec(name="ünïcode \0 \n", launch=LAUNCH),
            key="k",
        ),
        JobMoved(job="1", move=Move.CANCEL, why='"null" is a word', by="ann"),
        RoundPlanned(number=1, starts_s=0.1, ends_s=360.1, granted=(LEASE,), reserved={"2": LEASE.bundle}),
        LeaseClosed(exit=Exit("1", "failed", 1e300, 0.0, 5e-324, 2.5, -9), lapsed=True),
        AllocationAdopted(number=1, policy="fifo", shares=SHARES, notes=("a", "b")),
        JobsForgotten(jobs=("1", "2_0"), keys=("ann:k",), job_types=("new",)),
        CheckpointSaved(job="1", place="node:n1"),
        RecordsLost(records=3, epoch=7, next_job=300_012, next_lease=300_099),
        LeaseRecalled(lease="1", why="hold", untold=True),
        NodeJoined(spec=NodeSpec(name="n1", worker_type="v100", gpus=8, storage="nfs")),
        GpusWithheld(node="n1", gpus=()),
        Configured(settings=Settings(preemptions_max=3, speed={"v100": 2.0})),
        PricesSet(price_per_gpu_hour={"v100": 2.0}, by="ann"),
        DataCached(node="n1", data=(CachedData("ann", "a" * 32, 5e9), CachedData("", "b" * 32, 1.5))),
        DataNamed(job="1", data={"a" * 32: 8e9, "b" * 32: 0.0}, node="n2"),
    ],
    ids=lambda fact: type(fact).__name__,
)
def test_facts_are_read_back_unchanged(fact: Fact) -> None:
    """Text, numbers, nested parts and unknown fields survive encoding and decoding, more than once."""
    payload = encode_facts([fact])
    assert encode_facts(decode_facts(payload)) == payload
    assert msgspec.to_builtins(decode_facts(payload), enc_hook=bytes) == msgspec.to_builtins(
        [fact], enc_hook=bytes
    )


def test_every_fact_can_be_read() -> None:
    """Each class of facts is in `AnyFact`; a class that is not could be written, but not read."""
    assert set(get_args(AnyFact)) == set(Fact.__subclasses__())


@pytest.mark.parametrize("number", [float("inf"), float("-inf"), float("nan")])
def test_numbers_that_json_cannot_hold_are_refused(number: float, wording: Wording) -> None:
    """An infinity or a NaN does not become null: it is refused, and the error has its place."""
    closed = LeaseClosed(exit=Exit("1", "finished", number, 1.0, 1.0, 1.0))
    with pytest.raises(Unwritable, match=rf"LeaseClosed\.exit\[2\] is {number}") as refused:
        encode_facts([EpochStarted(epoch=1), closed])
    wording(refused.value)
    with pytest.raises(Unwritable, match=r"PricesSet\.price_per_gpu_hour\.v100 is"):
        encode_facts([PricesSet(price_per_gpu_hour={"v100": number})])
    with pytest.raises(Unwritable, match=r"JobSubmitted\.spec\.steps is"):
        encode_facts([JobSubmitted(job="1", spec=JobSpec(steps=number, launch=Launch(unknown={"argv": []})))])


def test_a_null_that_is_meant_is_written() -> None:
    """An unknown price, which is None, is written as null and read back."""
    fact = AllocationAdopted(
        number=1, policy="p", shares=msgspec.structs.replace(SHARES, price=[None, 1.0]), value=None
    )
    planned = RoundPlanned(number=1, starts_s=0.0, ends_s=1.0, granted=(LEASE,))
    assert decode_facts(encode_facts([fact, planned])) == [fact, planned]


@pytest.mark.parametrize(
    "spec",
    [JobSpec(launch=Launch(command=("half a pair: \ud800",))), JobSpec(name="half a pair: \ud800")],
    ids=["in launch", "in a name"],
)
def test_text_that_could_not_be_read_back_is_refused(spec: JobSpec) -> None:
    """A submission with text that UTF-8 cannot hold is not written into the journal."""
    with pytest.raises(Unwritable):
        encode_facts([JobSubmitted(job="1", spec=spec)])


def test_checksums_cover_every_part() -> None:
    """The checksum changes with a record's number, time, version and payload, and with those of a snapshot."""
    sums = {
        record_crc(1, 0.0, 1, b"[]"),
        record_crc(2, 0.0, 1, b"[]"),
        record_crc(1, 0.5, 1, b"[]"),
        record_crc(1, 0.0, 2, b"[]"),
        record_crc(1, 0.0, 1, b"[ ]"),
        snapshot_crc(1, 1, b"[]"),
        snapshot_crc(2, 1, b"[]"),
        snapshot_crc(1, 2, b"[]"),
    }
    assert len(sums) == 8
    # Journals outlive releases, so checksums never change.
    assert record_crc(1, 0.0, 1, b"[]") == 952676179


def test_facts_of_older_releases_keep_their_meaning() -> None:
    """In older facts, fields that were added later get defaults: the recall was sent, the disk is the node's own."""
    written = b'[{"type":"LeaseRecalled","lease":"1","why":"hold"},'
    written += b'{"type":"NodeJoined","spec":{"name":"n1","worker_type":"v100","gpus":8}}]'
    recalled, joined = decode_facts(written)
    assert isinstance(recalled, LeaseRecalled)
    assert isinstance(joined, NodeJoined)
    assert (recalled.untold, joined.spec.storage, joined.spec.store) == (False, "", "node:n1")
    assert encode_facts([recalled, joined]) == written
