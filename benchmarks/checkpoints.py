"""Cost of checkpoints while training: `python -m benchmarks.checkpoints [--only 100MB] [--list]`.

A model of square layers with Adam trains on one thread of the CPU. The cases, by name:

- `ways-100MB`: ours in the background and in the foreground, `torch.save`, `dcp.save` and `dcp.async_save`, each after
  the same number of steps and equally durable;
- `bound-100MB-3.5`: `every="auto"` with an overhead of 3.5 %;
- `neighbour-100MB`: other jobs start on the same cores, three times, and stop again;
- `slow-disk-25MB`: writing becomes slow in the middle; steps beside a checkpoint, and in turns without any;
- `recovery-100MB`: kill -9, and how long the job takes to be where it was.

On a busy machine single runs mean nothing, so all figures are medians of interleaved runs. The cases run by themselves:
`--only` takes parts of their names. At the end of each is how long it took.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from functools import partial

from benchmarks.checkpoint_loops import bound, neighbour, slow_disk
from benchmarks.checkpoint_recovery import recovery
from benchmarks.checkpoint_ways import compare

MEGABYTES = (25, 100, 400)
BOUNDS = (0.01, 0.035, 0.05)


def cases(repeats: int) -> dict[str, Callable[[], None]]:
    """Return all cases by name."""
    return {
        **{f"ways-{size}MB": partial(compare, size, repeats) for size in MEGABYTES},
        **{
            f"bound-{size}MB-{100 * part:g}": partial(bound, size, part, repeats)
            for size in MEGABYTES
            for part in BOUNDS
        },
        **{f"neighbour-{size}MB": partial(neighbour, size, 0.035, repeats) for size in MEGABYTES[:2]},
        "slow-disk-25MB": partial(slow_disk, 25, 0.2, repeats),
        "recovery-100MB": partial(recovery, 100, 0.035, 3),
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--only", nargs="+", default=[""], help="run the cases with any of these in their names"
    )
    parser.add_argument("--list", action="store_true", help="print the names of the cases")
    parser.add_argument("--repeats", type=int, default=7)
    arguments = parser.parse_args()
    for name, run in cases(arguments.repeats).items():
        if not any(part in name for part in arguments.only):
            continue
        print(name, flush=True)
        if arguments.list:
            continue
        began_s = time.monotonic()
        run()
        load = os.getloadavg()[0]
        print(f"  took {time.monotonic() - began_s:.0f} s; load at the end {load:.1f}", flush=True)


if __name__ == "__main__":
    main()
