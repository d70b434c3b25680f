"""Nodes must prove which checkpoint storage they share; the scheduler does not accept a claim without proof."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from protos.gavel.v1 import agents_pb2 as pb
from scheduler.live.agents.shared_storage import judge_claim, prove
from scheduler.model.cluster import NodeSpec
from tests.support.linked import CALM, PATIENCE_S, Peer, Scheduler, on_event_loop
from worker_agent.node.storage import CheckpointStorage, StorageError

ID = "0123456789abcdef"
# Long enough for a node that answers slowly.
WAITS = msgspec.structs.replace(CALM, proof_s=PATIENCE_S)


def node(name: str, storage: str) -> NodeSpec:
    """A node of the scheduler's state."""
    return NodeSpec(name=name, worker_type="v100", gpus=1, storage=storage)


@pytest.mark.parametrize(
    ("claim", "known", "expected"),
    [
        ("", {}, ""),
        ("../etc", {}, ""),
        ("a b:c/d", {}, ""),
        (ID, {}, "first"),
        (ID, {"n2": node("n2", "another-id")}, "first"),
        (ID, {"n2": node("n2", ID)}, "challenge"),
        (ID, {"n1": node("n1", ID), "n2": node("n2", ID)}, "known"),
        (ID, {"n1": node("n1", ""), "n2": node("n2", ID)}, "challenge"),
    ],
)
def test_claims_of_shared_storage(claim, known, expected):
    """The first node with an id founds its group, a proof holds over restarts, and every other node is challenged."""
    assert judge_claim("n1", claim, known) == expected


async def act(peer: Peer, folder: CheckpointStorage) -> None:
    """Answer storage checks as an agent does, with this directory."""
    while True:
        check = (await peer.next("storage_check")).storage_check
        await peer.say(storage_checked=await folder.act(check))


async def joined(scheduler: Scheduler, peer: Peer, folder: CheckpointStorage, claim: str) -> str:
    """Link a node, and return the storage that the scheduler assigns to it."""
    answering = asyncio.create_task(act(peer, folder))
    await peer.hello(storage_id=claim)
    while (
        scheduler.links.by_name.get(peer.name) is None or not scheduler.links.by_name.get(peer.name).welcome
    ):
        await asyncio.sleep(0.005)
    peer.acting = answering
    return scheduler.state.nodes[peer.name].spec.storage


@on_event_loop
async def test_two_nodes_of_one_directory_share_and_a_copy_of_it_does_not(tmp_path):
    """The second node finds the nonce of the first; the third, whose disk was copied with its id, does not."""
    shared, copied = CheckpointStorage(tmp_path / "a"), CheckpointStorage(tmp_path / "b", look_s=0.1)
    claim = shared.identity()
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / ".gavel-storage").write_text(claim)
    assert copied.identity() == claim
    async with (
        Scheduler(pace=WAITS) as scheduler,
        scheduler.peer("n1") as n1,
        scheduler.peer("n2") as n2,
        scheduler.peer("n3") as n3,
    ):
        assert await joined(scheduler, n1, shared, claim) == claim
        assert await joined(scheduler, n2, shared, claim) == claim
        assert await joined(scheduler, n3, copied, claim) == ""
        assert scheduler.links.view("n2").storage == claim
        while [path.name for path in (tmp_path / "a").iterdir()] != [".gavel-storage"]:
            # The test waits until the nonces are removed again.
            await asyncio.sleep(0.01)
        for peer in (n1, n2, n3):
            peer.acting.cancel()


@on_event_loop
async def test_a_node_that_does_not_answer_the_challenge_is_welcome_without_sharing():
    """After the patience, the newcomer gets a storage of its own, as it has proved nothing."""
    async with (
        Scheduler() as scheduler,
        scheduler.peer("n1") as n1,
        scheduler.peer("n2") as n2,
    ):
        await n1.join(storage_id=ID)
        await n2.join(storage_id=ID)
        assert scheduler.state.nodes["n1"].spec.storage == ID
        assert scheduler.state.nodes["n2"].spec.storage == ""


@on_event_loop
async def test_a_proof_stands_when_the_link_or_the_scheduler_is_new():
    """A node that proved this claim before is not challenged, so that a restart moves no job."""
    first = Scheduler(pace=WAITS)
    async with first, first.peer("n1") as n1, first.peer("n2") as n2:
        await n1.join(storage_id=ID)
        two_acts = asyncio.create_task(say_yes(n1)), asyncio.create_task(say_yes(n2))
        await n2.hello(storage_id=ID)
        while (link := first.links.by_name.get("n2")) is None or not link.welcome:
            await asyncio.sleep(0.005)
        for task in two_acts:
            task.cancel()
    async with Scheduler(journal=first.journal) as second, second.peer("n2") as n2:
        await n2.join(storage_id=ID)
        assert second.state.nodes["n2"].spec.storage == ID


async def say_yes(peer: Peer) -> None:
    """Report every nonce as present."""
    while True:
        check = (await peer.next("storage_check")).storage_check
        await peer.say(storage_checked=pb.StorageChecked(check=check.check, found=True))


@on_event_loop
async def test_a_failed_proof_names_its_reason(wording):
    """A full disk, a lost link and a missing nonce each give their reason, and the nonce is removed."""
    actions: list[int] = []

    async def writes(check: pb.StorageCheck) -> pb.StorageChecked:
        actions.append(check.action)
        return pb.StorageChecked(check=check.check, found=True)

    async def full(check: pb.StorageCheck) -> pb.StorageChecked:
        return pb.StorageChecked(check=check.check, error="No space left on device")

    async def blind(check: pb.StorageCheck) -> pb.StorageChecked:
        return pb.StorageChecked(check=check.check)

    async def gone(check: pb.StorageCheck) -> pb.StorageChecked:
        raise ConnectionError("n2: the link is gone")

    async def mute(check: pb.StorageCheck) -> pb.StorageChecked:
        await asyncio.Event().wait()
        raise AssertionError

    assert "No space left" in await prove(full, blind)
    wording(await prove(writes, blind))
    assert await prove(writes, gone) == "n2: the link is gone"
    wording(await prove(writes, mute, patience_s=0.05))
    assert await prove(writes, writes) == ""
    await asyncio.sleep(0)
    assert pb.StorageCheck.ACTION_REMOVE in actions


# ------------------------------------------------------------------------------------------------ on the node


def test_the_identity_of_a_directory_stays_and_is_shared(tmp_path):
    """The first agent writes it, and all later ones read the same."""
    first, again = CheckpointStorage(tmp_path / "c").identity(), CheckpointStorage(tmp_path / "c").identity()
    assert first == again
    assert CheckpointStorage(tmp_path / "d").identity() != first


def test_a_directory_without_an_id_in_its_file_is_an_error_with_the_remedy(tmp_path):
    """An empty or foreign file is not taken for an id, nor is the target of a link."""
    (tmp_path / ".gavel-storage").write_text("no id!\n")
    with pytest.raises(StorageError, match="remove the file"):
        CheckpointStorage(tmp_path).identity()
    (tmp_path / ".gavel-storage").unlink()
    (tmp_path / "secret").write_text("a-long-enough-secret")
    (tmp_path / ".gavel-storage").symlink_to(tmp_path / "secret")
    with pytest.raises(StorageError, match="--checkpoint-dir"):
        CheckpointStorage(tmp_path).identity()


def test_a_check_touches_nothing_but_its_own_file(tmp_path):
    """A name with a path is refused, an existing file is not overwritten, and a link is not followed."""
    storage = CheckpointStorage(tmp_path, look_s=0.0)

    def acted(check: str, action: pb.StorageCheck.Action) -> pb.StorageChecked:
        storage_check = pb.StorageCheck(check=check, action=action, nonce="n" * 16)
        return asyncio.run(storage.act(storage_check))

    write, read, remove = (
        pb.StorageCheck.ACTION_WRITE,
        pb.StorageCheck.ACTION_READ,
        pb.StorageCheck.ACTION_REMOVE,
    )
    assert acted("../../etc/passwd", remove).error
    (tmp_path / "victim").write_text("mine")
    (tmp_path / ".gavel-check-linked-check").symlink_to(tmp_path / "victim")
    assert acted("linked-check", write).error
    assert not acted("linked-check", read).found
    assert (tmp_path / "victim").read_text() == "mine"
    assert acted("a-new-check", write).found
    assert acted("a-new-check", write).error
    assert acted("a-new-check", read).found
    acted("a-new-check", remove)
    assert not acted("a-new-check", read).found
