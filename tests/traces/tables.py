"""Throughput tables that tests of workloads share: the published one, and a small one made up for tests."""

from functools import cache

from tests.support.public_data import public_data
from traces.throughput_files import load_throughputs
from traces.throughputs import Throughputs


@cache
def _published(path: str) -> Throughputs:
    return load_throughputs(path)


def published() -> Throughputs:
    """The table on which the published figures are based; the test is skipped if it is absent."""
    return _published(str(public_data("gavel/simulation_throughputs.json")))


def small() -> Throughputs:
    """Two kinds of jobs on two types: `big` fits only v100, and `lm` runs on up to two GPUs."""
    return Throughputs(
        solo={
            ("lm", 1, "v100"): 4.0,
            ("lm", 2, "v100"): 7.0,
            ("lm", 1, "k80"): 1.0,
            ("big", 1, "v100"): 2.0,
            ("big", 1, "k80"): 0.0,
        },
        unconsolidated={("lm", 2, "v100"): 5.0},
        pairs={("v100", "lm", 1, "big", 1): (3.0, 1.5)},
        prices_per_gpu_hour={"v100": 0.74, "k80": 0.135},
        source="small",
    )
