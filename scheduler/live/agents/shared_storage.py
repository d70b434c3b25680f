"""Prove that two nodes share a checkpoint directory: one writes a nonce, the other reads it.

Each checkpoint directory holds an id, but equal ids are no proof: a copy of a disk has the id of the original disk. The
first node with an id is believed. A node that claims the same id later is challenged, and shares nothing until it has
succeeded.
"""

from __future__ import annotations

import asyncio
import re
import secrets
from collections.abc import Awaitable, Callable, Mapping

from protos.gavel.v1 import agents_pb2 as pb
from scheduler.live.pace import PROOF_S
from scheduler.model.cluster import NodeSpec

_ID = re.compile(r"[A-Za-z0-9_-]{8,128}")

# Sends a check to an agent, and returns the agent's answer.
Ask = Callable[[pb.StorageCheck], Awaitable[pb.StorageChecked]]


def judge_claim(node: str, claim: str, specs: Mapping[str, NodeSpec]) -> str:
    """Return how to treat a node's claim of an id: "" (invalid), "known" (proved before), "first" or "challenge"."""
    if not _ID.fullmatch(claim):
        return ""
    if node in specs and specs[node].storage == claim:
        # The last proof stays valid, so that a restart of either side moves no job.
        return "known"
    others = any(spec.storage == claim for name, spec in specs.items() if name != node)
    return "challenge" if others else "first"


async def prove(writer: Ask, reader: Ask, patience_s: float = PROOF_S) -> str:
    """Return why the proof failed; empty if the reader finds the nonce that the writer has written."""
    check, nonce = secrets.token_hex(8), secrets.token_hex(16)

    def request(action: pb.StorageCheck.Action) -> pb.StorageCheck:
        return pb.StorageCheck(check=check, action=action, nonce=nonce)

    try:
        async with asyncio.timeout(patience_s):
            written = await writer(request(pb.StorageCheck.ACTION_WRITE))
            if not written.found:
                return f"the nonce could not be written: {written.error or 'no reason given'}"
            read = await reader(request(pb.StorageCheck.ACTION_READ))
    except TimeoutError:
        return f"no answer within {patience_s:g} s"
    except ConnectionError as error:
        return str(error)
    finally:
        removal = asyncio.ensure_future(_quietly(writer, request(pb.StorageCheck.ACTION_REMOVE)))
        _removals.add(removal)
        removal.add_done_callback(_removals.discard)
    if read.found:
        return ""
    return f"the nonce is not there{': ' + read.error if read.error else ''}"


# Removals in progress: asyncio itself keeps no reference to a running task.
_removals: set[asyncio.Future[None]] = set()


async def _quietly(ask: Ask, message: pb.StorageCheck) -> None:
    try:
        await asyncio.wait_for(ask(message), PROOF_S)
    except (TimeoutError, ConnectionError):
        return
