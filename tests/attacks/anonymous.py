"""Callers without a token who send large and malformed messages: their cost for a real `gavel serve`.

python -m tests.attacks.anonymous [--calls 60] [--megabytes 14] [--seconds 60] [--plain]

First, `--calls` calls of `--megabytes` each are made at once, to a method that needs a token and to Join, which needs
none. Then malformed calls are made for `--seconds`, without a token and with one. The table shows the memory of the
scheduler, the bytes that it logged and the answers to the callers. During each attack another caller, with a valid
token, asks for the status.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from grpc import aio

from protos.gavel.v1 import cluster_pb2
from scheduler.live.access.roles import Role
from tests.support.served import Served

CALL_S = 60.0
MALFORMED = b"\x0a\xff\xff\xff\xff\x0f not a message"
PATHS = ("/gavel.v1.Jobs/SubmitJobs", "/gavel.v1.Agents/Join")
SAMPLE_S = 0.02


def same(data: bytes) -> bytes:
    """Return the bytes unchanged."""
    return data


async def code_of(channel: aio.Channel, path: str, body: bytes, metadata: Any) -> str:
    """Make a call with this body; return the method and the status code with which the call ends."""
    ask = channel.unary_unary(path, same, same)
    try:
        await ask(body, metadata=metadata, timeout=CALL_S)
    except aio.AioRpcError as error:
        return f"{path.rpartition('/')[2]} {error.code().name}"
    return f"{path.rpartition('/')[2]} OK"


async def watch_memory(served: Served, most_mb: list[float], stop: asyncio.Event) -> None:
    """Keep the largest resident memory in `most_mb[0]`, in MB, until `stop` is set."""
    while not stop.is_set():
        most_mb[0] = max(most_mb[0], served.rss_mb())
        await asyncio.sleep(SAMPLE_S)


async def watch_status(served: Served, longest_s: list[float], stop: asyncio.Event) -> None:
    """Request the status repeatedly until `stop` is set, and keep the longest time to an answer in `longest_s[0]`."""
    channel = served.channel()
    ask = channel.unary_unary(
        "/gavel.v1.Cluster/GetStatus",
        cluster_pb2.GetStatusRequest.SerializeToString,
        cluster_pb2.Status.FromString,
    )
    while not stop.is_set():
        began_s = time.monotonic()
        await ask(cluster_pb2.GetStatusRequest(), metadata=served.metadata(Role.VIEWER), timeout=CALL_S)
        longest_s[0] = max(longest_s[0], time.monotonic() - began_s)
        await asyncio.sleep(0.2)
    await channel.close()


async def large(served: Served, calls: int, body: bytes, path: str) -> Counter[str]:
    """Make this many calls at once, each over its own connection."""
    channels = [served.channel() for _ in range(calls)]
    codes = await asyncio.gather(*(code_of(channel, path, body, ()) for channel in channels))
    for channel in channels:
        await channel.close()
    return Counter(codes)


async def malformed(served: Served, seconds: float, metadata: Any) -> Counter[str]:
    """Make one malformed call after another, over eight connections."""
    codes: Counter[str] = Counter()
    end_s = time.monotonic() + seconds

    async def call_all(channel: aio.Channel) -> None:
        while time.monotonic() < end_s:
            for path in PATHS:
                codes[await code_of(channel, path, MALFORMED, metadata)] += 1

    channels = [served.channel() for _ in range(8)]
    await asyncio.gather(*map(call_all, channels))
    for channel in channels:
        await channel.close()
    return codes


async def measured(served: Served, name: str, attack: Any) -> None:
    """Run one attack, and print its row of the table."""
    before_mb, logged = served.rss_mb(), served.log.stat().st_size
    most_mb, longest_s, stop = [before_mb], [0.0], asyncio.Event()
    watching = [
        asyncio.create_task(watch_memory(served, most_mb, stop)),
        asyncio.create_task(watch_status(served, longest_s, stop)),
    ]
    began_s = time.monotonic()
    codes = await attack
    took_s = time.monotonic() - began_s
    stop.set()
    await asyncio.gather(*watching)
    logged = served.log.stat().st_size - logged
    answers = ", ".join(f"{count} {code}" for code, count in codes.most_common())
    print(
        f"{name:28} {before_mb:7.0f} {most_mb[0] - before_mb:+8.0f} {logged:12,} {longest_s[0]:8.2f} {took_s:7.1f}  "
        f"{answers}",
        flush=True,
    )


async def attack(served: Served, calls: int, megabytes: float, seconds: float) -> None:
    """Run all attacks."""
    body = b"\x0a" + b"\x00" * int(megabytes * 1e6)
    print(
        f"{'attack':28} {'MB':>7} {'grew MB':>8} {'bytes logged':>12} {'status s':>8} {'took s':>7}  answers"
    )
    for path in PATHS:
        name = f"{calls} of {megabytes:g} MB, {path.rpartition('/')[2]}"
        await measured(served, name, large(served, calls, body, path))
    await measured(served, f"malformed, no token, {seconds:g} s", malformed(served, seconds, ()))
    metadata = served.metadata(Role.USER)
    await measured(served, f"malformed, a token, {seconds:g} s", malformed(served, seconds, metadata))


def main() -> None:
    """Start a scheduler and attack it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--calls", type=int, default=60)
    parser.add_argument("--megabytes", type=float, default=14.0)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--plain", action="store_true", help="without TLS")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, Served(Path(folder, "s"), tls=not options.plain) as served:
        asyncio.run(attack(served, options.calls, options.megabytes, options.seconds))
        assert served.process.poll() is None, "the scheduler has ended"


if __name__ == "__main__":
    main()
