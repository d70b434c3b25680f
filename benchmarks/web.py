"""The web gateway beside a scheduler with many jobs: bytes and times of its answers, and what open pages cost.

    python -m benchmarks.web [--jobs 10000] [--pages 200] [--seconds 8]

Pages are streams of events that are read in another process. Arrays of jobs are held and released all the time, so that
there are changes to send. The cost is processor time of gateway and scheduler: with nothing to send, with changes, and
with changes and pages.
"""

from __future__ import annotations

import argparse
import asyncio
import gzip
import http.client
import itertools
import multiprocessing
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

from benchmarks.priority import ask_for_priority
from benchmarks.service import cpu_s
from gavel.cli.service.local_cluster import LocalCluster
from gavel.client import Client, JobSpec, Refused

ADDRESSES = ("/v1/queue", "/v1/overview", "/v1/jobs?page_size=200&brief=true", "/v1/nodes", "/v1/status")
SETTINGS = ("scheduler.policy=fifo", "scheduler.round_s=3600")
BATCH = 5000
# How often jobs are changed: one command changes all jobs of an array.
CHANGES_PER_S, ARRAYS, ARRAY_JOBS = 100, 2, 200


def fill(client: Client, jobs: int) -> None:
    """Submit jobs with names, users and types as clusters have them."""
    for start in range(0, jobs, BATCH):
        specs = [
            JobSpec(
                command=("train",),
                name=f"train-{number * 7919 % 100_003}-lr{number % 17}",
                job_type=f"model-{number % 40}",
                user=f"user{number % 60}",
                tenant=f"org/team-{number % 12}",
                gpus=1,
                steps=1000 + number % 977,
            )
            for number in range(start, min(start + BATCH, jobs))
        ]
        client.submit(specs)


def fetch(port: int, code: str, path: str) -> tuple[float, bytes]:
    """Return the time of a request on a new connection, and the compressed body."""
    began_s = time.perf_counter()
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("GET", path, headers={"Authorization": f"Bearer {code}", "Accept-Encoding": "gzip"})
    response = connection.getresponse()
    body = response.read()
    connection.close()
    assert response.status == 200, body[:300]
    return time.perf_counter() - began_s, body


def pages_process(port: int, code: str, pages: int, received: multiprocessing.Queue[int]) -> None:
    """Open streams of events; put the number of open ones into the queue, then read them until killed."""
    asyncio.run(_pages(port, code, pages, received))


async def _pages(port: int, code: str, pages: int, received: multiprocessing.Queue[int]) -> None:
    readers = []
    for _ in range(pages):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        head = f"GET /v1/events HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {code}\r\n\r\n"
        writer.write(head.encode())
        assert b" 200 " in await reader.readline()
        readers.append((reader, writer))
    received.put(len(readers))
    await asyncio.gather(*(_read(reader) for reader, _ in readers))


async def _read(reader: asyncio.StreamReader) -> None:
    while await reader.read(65_536):
        pass


def submit_arrays(client: Client) -> list[str]:
    """Submit the arrays that are held and released; return their ids."""
    spec = JobSpec(
        command=("train",),
        name="sweep",
        job_type="model-1",
        gpus=1,
        steps=1000,
        array=tuple(range(ARRAY_JOBS)),
    )
    return [client.submit(spec)[0].partition("_")[0] for _ in range(ARRAYS)]


def cost(
    client: Client, arrays: list[str], pids: dict[str, int], seconds: float
) -> tuple[dict[str, float], float]:
    """Change jobs for a while, or none without arrays; return the cores of each process, and the changes per second."""
    before = {name: cpu_s(pid) for name, pid in pids.items()}
    began_s = time.perf_counter()
    changes = 0
    if not arrays:
        time.sleep(seconds)
    for act, array in itertools.cycle(itertools.product((client.hold, client.release), arrays)):
        wait_s = began_s + changes / CHANGES_PER_S - time.perf_counter()
        time.sleep(max(0.0, wait_s))
        if time.perf_counter() - began_s > seconds:
            break
        act(array)
        changes += ARRAY_JOBS
    wall_s = time.perf_counter() - began_s
    for array in arrays:
        with suppress(Refused):
            client.release(array)
    return {name: (cpu_s(pid) - before[name]) / wall_s for name, pid in pids.items()}, changes / wall_s


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--pages", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=8.0)
    options = parser.parse_args()
    ask_for_priority()
    with (
        tempfile.TemporaryDirectory() as folder,
        LocalCluster(Path(folder), ["v100=8"], settings=SETTINGS) as cluster,
    ):
        url = urlsplit(cluster.start_web("127.0.0.1:0"))
        assert url.port is not None
        assert cluster.web is not None
        assert cluster.scheduler is not None
        port, code = url.port, url.fragment.removeprefix("code=")
        client = Client(cluster.address)
        fill(client, options.jobs)
        arrays = submit_arrays(client)
        while len(gzip.decompress(fetch(port, code, "/v1/queue")[1])) < 100 * options.jobs:
            time.sleep(0.2)
        print(f"{'address':42}{'first ms':>10}{'again ms':>10}{'gzip kB':>10}")
        for path in ADDRESSES:
            first_s, body = fetch(port, code, path)
            again_s = min(fetch(port, code, path)[0] for _ in range(3))
            print(f"{path:42}{first_s * 1000:10.1f}{again_s * 1000:10.1f}{len(body) / 1000:10.1f}")
        pids = {"gateway": cluster.web.pid, "scheduler": cluster.scheduler.pid}
        rows = [
            (0, *cost(client, [], pids, options.seconds)),
            (0, *cost(client, arrays, pids, options.seconds)),
        ]
        opened: multiprocessing.Queue[int] = multiprocessing.Queue()
        reading = multiprocessing.Process(
            target=pages_process, args=(port, code, options.pages, opened), daemon=True
        )
        reading.start()
        opened.get()
        rows.append((options.pages, *cost(client, arrays, pids, options.seconds)))
        print(f"\n{'pages':>8}{'changes/s':>12}" + "".join(f"{name + ' cores':>18}" for name in pids))
        for pages, cores, per_s in rows:
            print(f"{pages:8}{per_s:12.0f}" + "".join(f"{cores[name]:18.3f}" for name in pids))
        memory = next(
            line
            for line in Path(f"/proc/{cluster.web.pid}/status").read_text().splitlines()
            if "VmRSS" in line
        )
        print(f"\ngateway: {int(memory.split()[1]) / 1000:.0f} MB")
        reading.kill()
        client.close()


if __name__ == "__main__":
    main()
