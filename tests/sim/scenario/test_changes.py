"""Changes of a cluster over time: the file of capacity, failures and prices."""

from pathlib import Path

import pytest

from scheduler.model.errors import InvalidSpec
from scheduler.sim.engine.machines import Machines
from scheduler.sim.engine.physics import Physics
from scheduler.sim.run import Run
from scheduler.sim.scenario.changes import changes_of, horizon_s
from scheduler.sim.simulate import nodes
from traces.errors import TraceError
from traces.roofline import default_throughputs

CLUSTER = {"t4": 8, "a100": 4}
HEAD = "t_s,worker_type,gpus\n"


def gpus_over_time(path: Path, text: str, *times_s: float, **more: object) -> list[int]:
    """The T4s that are up at these times with this file; four to a node."""
    path.write_text(HEAD + text)
    machines = Machines(Physics(default_throughputs()))
    for spec in nodes(CLUSTER, 4):
        machines.join(0.0, spec)
    run = Run(cluster=CLUSTER, gpus_per_node=4, capacity_file=str(path), **more)  # type: ignore[arg-type]
    changes = list(changes_of(run))
    counts = []
    for time_s in times_s:
        while changes and changes[0][0] <= time_s:
            at_s, change = changes.pop(0)
            assert callable(change)
            list(change(machines, at_s))
        up = [node.spec for node in machines.nodes.values() if node.up]
        counts.append(sum(spec.gpus for spec in up if spec.worker_type == "t4"))
    return counts


@pytest.mark.parametrize(
    ("text", "gpus"),
    [
        ("10,t4,4\n", [8, 4, 4]),
        ("10,t4,0\n20,t4,8\n", [8, 0, 8]),
        ("10,t4,16\n20,t4,4\n", [8, 16, 4]),
        ("0,t4,4\n20,t4,8\n", [4, 4, 8]),
        ("0,t4,0\n10,t4,12\n", [0, 12, 12]),
        # Capacity changes by whole nodes.
        ("10,t4,7\n", [8, 4, 4]),
        # A change of another type.
        ("10,a100,8\n", [8, 8, 8]),
    ],
)
def test_capacity_follows_the_file(text: str, gpus: list[int], tmp_path: Path) -> None:
    """Capacity starts as the cluster does, unless the file has a line for the start."""
    assert gpus_over_time(tmp_path / "capacity", text, 0.0, 10.0, 20.0) == gpus


def test_a_node_that_is_away_is_not_repaired(tmp_path: Path) -> None:
    """A node that fails, and whose repair falls into a time without it, comes back when the file returns it."""
    failures = tmp_path / "failures"
    failures.write_text("t_s,node,event\n5,t4-1,crash\n15,t4-1,repair\n")
    counts = gpus_over_time(
        tmp_path / "capacity",
        "10,t4,4\n20,t4,8\n",
        *(5.0, 10.0, 15.0, 20.0),
        failures_file=str(failures),
    )
    assert counts == [4, 4, 4, 8]


def test_same_seed_same_failures() -> None:
    """Equal seeds give equal failures, other seeds others, in order of time and up to the horizon."""
    runs = (Run(cluster=CLUSTER, gpus_per_node=4, seed=seed, mtbf_h=100.0) for seed in (1, 1, 2))
    times = [[at_s for at_s, _ in changes_of(run, until_s=horizon_s(0.0))] for run in runs]
    assert times[0] == times[1] != times[2]
    assert times[0] == sorted(times[0])
    assert len(times[0]) > 20


def test_too_many_failures_are_refused() -> None:
    """Failures every few seconds over decades are refused as a mistake."""
    with pytest.raises(InvalidSpec, match="mtbf_h"):
        changes_of(Run(cluster=CLUSTER, gpus_per_node=4, mtbf_h=0.001), until_s=1e9)


@pytest.mark.parametrize(
    ("option", "text"),
    [
        ("capacity_file", HEAD + "5,k80,4\n"),
        ("prices_file", "t_s,worker_type,price_per_gpu_hour\n5,k80,4\n"),
        ("failures_file", "t_s,node,event\n5,k80-0,crash\n"),
    ],
)
def test_changes_of_unknown_types_are_refused(option: str, text: str, tmp_path: Path) -> None:
    """A worker type or node that the cluster lacks is refused with the file's name."""
    path = tmp_path / "file"
    path.write_text(text)
    with pytest.raises(TraceError, match=f"{path}.*k80"):
        changes_of(Run(cluster=CLUSTER, gpus_per_node=4, **{option: str(path)}))  # type: ignore[arg-type]
