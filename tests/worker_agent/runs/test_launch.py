"""From a job's `launch` to the shim's start.json: the environment of a rank, and every field wrong in turn."""

from __future__ import annotations

import json
import socket
import struct
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.support.wording import Wording
from worker_agent.core.messages import Launch, Order
from worker_agent.node.secrets import SecretError, read_secrets
from worker_agent.node.users import Account
from worker_agent.runs.launch import LaunchError, NodeFacts, launch_of, rendezvous_environment, start_file
from worker_agent.runs.rendezvous import CacheNode, HeldPorts, Rendezvous

NODE = NodeFacts(
    worker_type="v100",
    library=Path("/lib/of/gavel"),
    checkpoints=Path("/checkpoints"),
    devices=("0", "1", "GPU-c", "GPU-d"),
    environ={"PATH": "/bin", "LANG": "C.UTF-8", "TMPDIR": "/scratch", "AWS_SECRET": "x", "RANK": "7"},
)
ACCOUNT = Account(name="ada", home=Path("/homes/ada"), login_shell="/bin/bash")
MEETING = Rendezvous("10.0.0.1", 4000, 4001)
RUN = Path("/state/runs/17")


def start(launch: dict[str, Any] | None = None, *, account: Account = ACCOUNT, **more: Any) -> dict[str, Any]:
    """Return the start.json of a job on GPUs 1 and 2."""
    node = more.pop("node", NODE)
    order = {
        "lease": "17",
        "job": "12",
        "attempt": 2,
        "gpus": (1, 2),
        "ends_s": 9.0,
        "epoch": 3,
        "world_size": 2,
    }
    order |= {name: more.pop(name) for name in list(more) if name in Order.__struct_fields__}
    order = Order(**order, launch=Launch(**(launch or {"command": ("train",)})))
    return start_file(
        order,
        launch_of(order),
        node,
        account,
        MEETING,
        run_dir=RUN,
        **more,
    )


def test_a_job_has_one_rank_per_gpu() -> None:
    """All ranks see all GPUs of the lease, and each has its own local rank."""
    first, second = start()["ranks"]
    assert (first["argv"], first["rank"], second["rank"]) == (["train"], 0, 1)
    alike = first["env"].items() & second["env"].items()
    assert first["env"].items() - alike == {("RANK", "0"), ("LOCAL_RANK", "0")}
    assert second["env"].items() - alike == {("RANK", "1"), ("LOCAL_RANK", "1")}
    assert dict(alike) == {
        "PATH": "/bin",
        "LANG": "C.UTF-8",
        "TMPDIR": "/scratch",
        "PYTHONPATH": "/lib/of/gavel",
        "HOME": "/homes/ada",
        "USER": "ada",
        "LOGNAME": "ada",
        "SHELL": "/bin/bash",
        "PYTHONUNBUFFERED": "1",
        "WORLD_SIZE": "2",
        "LOCAL_WORLD_SIZE": "2",
        "NODE_RANK": "0",
        "MASTER_ADDR": "10.0.0.1",
        "MASTER_PORT": "4000",
        "GAVEL_COORDINATOR": "10.0.0.1:4001",
        "CUDA_VISIBLE_DEVICES": "1,GPU-c",
        "GAVEL_WORKER_TYPE": "v100",
        "GAVEL_GPUS": "2",
        "GAVEL_JOB_ID": "12",
        "GAVEL_JOB_NAME": "",
        "GAVEL_ATTEMPT": "2",
        "GAVEL_EPOCH": "3",
        "GAVEL_LEASE": "17",
        "GAVEL_RUN_DIR": "/state/runs/17",
        "GAVEL_CHECKPOINT_DIR": "/checkpoints/12",
    }


def test_ranks_get_the_number_of_their_loader_workers() -> None:
    """Each gets that of its own share, or as many as it is known to need; without known CPUs, no GAVEL_CPUS."""
    node = msgspec.structs.replace(NODE, cpus=12.0, gpus=4)
    assert [rank["env"]["GAVEL_CPUS"] for rank in start(node=node)["ranks"]] == ["3", "3"]
    assert [rank["env"]["GAVEL_CPUS"] for rank in start(node=node, workers=5)["ranks"]] == ["5", "5"]
    assert "GAVEL_CPUS" not in start()["ranks"][0]["env"]


def test_ranks_of_the_second_node_follow_those_of_the_first() -> None:
    """The second node's ranks begin after the first node's, however many it has."""
    start_json = start(node_rank=1, nodes=2, rank_first=6, world_size=8)
    assert [rank["rank"] for rank in start_json["ranks"]] == [6, 7]
    assert {rank["env"]["WORLD_SIZE"] for rank in start_json["ranks"]} == {"8"}
    assert start_json["ranks"][1]["env"]["LOCAL_RANK"] == "1"


def test_a_job_may_have_one_rank_per_node() -> None:
    """Launchers that spread over GPUs themselves get one rank on each node."""
    start_json = start(
        {"command": ["train"], "ranks": "per_node"}, node_rank=1, nodes=2, rank_first=6, world_size=8
    )
    (rank,) = start_json["ranks"]
    env = rank["env"]
    assert (rank["rank"], env["WORLD_SIZE"], env["LOCAL_WORLD_SIZE"], env["GAVEL_GPUS"]) == (1, "2", "1", "8")


def test_a_job_on_one_gpu_needs_no_coordinator() -> None:
    """A single rank has no other to agree with."""
    (rank,) = start(gpus=(1,), world_size=1)["ranks"]
    assert "GAVEL_COORDINATOR" not in rank["env"]


def test_the_nodes_of_a_gang_find_their_caches() -> None:
    """A rank gets the nodes that have a cache and can be reached, its own node's name and the secret."""
    nodes = (CacheNode("n1", "10.0.0.1", 4002), CacheNode("n2", "10.0.0.2", 0), CacheNode("n3", "", 4003))
    meeting = Rendezvous("10.0.0.1", 4000, 4001, nodes, "5a")
    order = Order("17", "12", 2, (1,), 9.0, node_rank=1, nodes=3, world_size=3)
    env = rendezvous_environment(meeting, order)
    assert json.loads(env["GAVEL_CACHE_NODES"]) == {"own": "n2", "nodes": [["n1", "10.0.0.1", 4002]]}
    assert env["GAVEL_CACHE_SECRET"] == "5a"
    assert not {"GAVEL_CACHE_NODES", "GAVEL_CACHE_SECRET"} & rendezvous_environment(MEETING, order).keys()


def test_torchrun_finds_its_options_in_the_environment() -> None:
    """A launcher gets torchrun's variables, except those that the job sets itself; a process per GPU gets none."""
    launch = {"command": ["torchrun"], "ranks": "per_node", "env": {"PET_NPROC_PER_NODE": "1"}}
    (rank,) = start(launch, node_rank=1, nodes=2, rank_first=6, world_size=8)["ranks"]
    assert {name: value for name, value in rank["env"].items() if name.startswith("PET_")} == {
        "PET_NNODES": "2",
        "PET_NODE_RANK": "1",
        "PET_NPROC_PER_NODE": "1",
        "PET_MASTER_ADDR": "10.0.0.1",
        "PET_MASTER_PORT": "4000",
    }
    assert not [name for rank in start()["ranks"] for name in rank["env"] if name.startswith("PET_")]


def test_a_launcher_of_several_ranks_on_one_node_has_a_coordinator() -> None:
    """The ranks that a launcher starts agree on their last step, too."""
    (rank,) = start({"command": ["torchrun"], "ranks": "per_node"}, world_size=2)["ranks"]
    assert rank["env"]["GAVEL_COORDINATOR"] == "10.0.0.1:4001"


def test_emulated_gpus_are_not_visible() -> None:
    """Jobs on emulated GPUs see no GPU and get the speed; all jobs get the number of steps."""
    node = NodeFacts(worker_type="v100", library=Path("/lib"), checkpoints=Path("/c"), speed=0.5)
    env = start(node=node, steps_max=100.0, array_index=0)["ranks"][0]["env"]
    assert env["CUDA_VISIBLE_DEVICES"] == ""
    assert (env["GAVEL_SPEED"], env["GAVEL_STEPS"], env["GAVEL_ARRAY_INDEX"]) == ("0.5", "100", "0")


def test_the_environment_has_the_venv_the_library_and_the_secrets() -> None:
    """The venv is first on PATH, our library first on PYTHONPATH, secrets beside the rest."""
    launch = {
        "command": ["x"],
        "venv": "/venv",
        "env": {"PATH": "/mine", "PYTHONPATH": "/their/lib", "A": "b"},
    }
    env = start(launch, secrets={"TOKEN": "t"}, node_env={"CUDA_MPS_PIPE_DIRECTORY": "/p"})["ranks"][0]["env"]
    assert (env["PATH"], env["VIRTUAL_ENV"]) == ("/venv/bin:/mine", "/venv")
    assert env["PYTHONPATH"] == "/lib/of/gavel:/their/lib"
    assert (env["A"], env["TOKEN"], env["CUDA_MPS_PIPE_DIRECTORY"]) == ("b", "t", "/p")


def test_output_is_unbuffered_unless_the_job_sets_it() -> None:
    """Python prints at once. A job that sets the variable, even to nothing, keeps its value."""
    environments = [{}, {"PYTHONUNBUFFERED": "0"}, {"PYTHONUNBUFFERED": ""}]
    ranks = [start({"command": ["x"], "env": env})["ranks"][0] for env in environments]
    assert [rank["env"]["PYTHONUNBUFFERED"] for rank in ranks] == ["1", "0", ""]


def test_a_job_with_plans_finds_that_of_its_lease() -> None:
    """GAVEL_PLAN names a file in the run directory; other jobs do not have it."""
    assert start(plan="{}")["ranks"][0]["env"]["GAVEL_PLAN"] == "/state/runs/17/plan.json"
    assert "GAVEL_PLAN" not in start()["ranks"][0]["env"]


def test_each_attempt_may_have_a_checkpoint_directory() -> None:
    """The directory is below the job's own, or below the one that the user names; the shim must create it first."""
    for named, directory in (({}, "/checkpoints/12"), ({"checkpoint_dir": "/ck"}, "/ck")):
        start_json = start({"command": ["x"], "checkpoints": "per_attempt", **named})
        name = "e00000003-a00000017"
        assert start_json["own_checkpoints"] == {"directory": directory, "name": name}
        assert start_json["ranks"][0]["env"]["GAVEL_CHECKPOINT_DIR"] == f"{directory}/{name}"
    assert start()["own_checkpoints"] is None


@pytest.mark.parametrize(
    ("of_job", "of_agent", "limit_s"), [(None, 60.0, 60.0), (90.0, 60.0, 90.0), (None, 0.0, None)]
)
def test_the_limit_of_a_setup_is_the_jobs_or_the_agents(
    of_job: float | None, of_agent: float, limit_s: float | None
) -> None:
    """The job's limit overrides the agent's; an agent may have none."""
    node = msgspec.structs.replace(NODE, setup_limit_s=of_agent)
    launch = {"command": ["x"], "setup": "make"} | ({"setup_limit_s": of_job} if of_job else {})
    assert start(launch, node=node)["setup_limit_s"] == limit_s


def test_a_job_of_another_user_has_its_ids() -> None:
    """The job gets its user's uid and groups, but not the agent's directory for temporary files."""
    account = Account(
        name="ada", home=Path("/homes/ada"), login_shell="/bin/sh", uid=1001, gid=1002, groups=(7,)
    )
    start_json = start(account=account)
    assert (start_json["uid"], start_json["gid"], start_json["groups"]) == (1001, 1002, [7])
    assert "TMPDIR" not in start_json["ranks"][0]["env"]


def test_only_a_script_has_a_shell() -> None:
    """A script and a setup of text get a shell, a command none; a setup ends at its first failing line."""
    start_json = start({"script": "a | b", "setup": "pip install x\nmake"})
    assert start_json["ranks"][0]["argv"] == ["/bin/sh", "-c", "a | b"]
    assert start_json["setup"] == ["/bin/sh", "-ec", "pip install x\nmake"]
    assert start({"command": ["a; rm -rf /"]})["ranks"][0]["argv"] == ["a; rm -rf /"]


@pytest.mark.parametrize(
    ("launch", "work", "cwd"),
    [
        ({"command": ["a"]}, None, "/homes/ada"),
        ({"command": ["a"], "workdir": "/data/p"}, None, "/data/p"),
        ({"command": ["a"], "upload": "sha256:" + "0" * 64}, RUN / "work", "/state/runs/17/work"),
        (
            {"command": ["a"], "upload": "sha256:" + "0" * 64, "workdir": "sub"},
            RUN / "work",
            "/state/runs/17/work/sub",
        ),
    ],
)
def test_a_job_starts_in_its_work_directory(launch: dict[str, Any], work: Path | None, cwd: str) -> None:
    """Without a work directory, it starts in its uploaded files or in the home directory."""
    assert start(launch, work=work)["cwd"] == cwd


def test_names_never_become_paths() -> None:
    """An id that looks like a path becomes a plain name below the directory of checkpoints."""
    assert start(job="../../etc")["ranks"][0]["env"]["GAVEL_CHECKPOINT_DIR"] == "/checkpoints/%2E.%2F..%2Fetc"


@pytest.mark.parametrize(
    ("launch", "field"),
    [
        (None, "launch.command"),
        (Launch(), "launch.command"),
        (Launch(command=("a",), venv="venv"), "launch.venv: 'venv'"),
        (Launch(command=("a",), workdir="~/x"), "launch.workdir: '~/x'"),
        (Launch(command=("a",), checkpoint_dir="x"), "launch.checkpoint_dir: 'x'"),
        (Launch(command=("a",), upload="sha256:", workdir="../x"), "launch.workdir: '../x'"),
    ],
)
def test_a_launch_that_this_node_must_not_start_is_refused(
    launch: Launch | None, field: str, wording: Wording
) -> None:
    """The scheduler has checked all fields; a node checks again those that lead to its own files."""
    with pytest.raises(LaunchError, match=field) as refused:
        launch_of(Order("17", "12", 2, (1,), 9.0, launch=launch))
    wording(refused.value)


def test_ranks_that_do_not_fit_are_refused(wording: Wording) -> None:
    """The gang would otherwise wait for ranks that never start."""
    with pytest.raises(LaunchError, match=r"7 to 8\b.* 8\b") as refused:
        start(rank_first=7, world_size=8)
    wording(refused.value)


def test_ports_are_kept_for_the_ranks() -> None:
    """A job gets two ports, the same at each request; a program that binds to any free port gets neither."""
    ports = HeldPorts()
    first, second = ports.take("17")
    assert first != second
    assert ports.take("17") == (first, second)
    with pytest.raises(OSError, match="in use"):
        _bind_any_of(first)
    # PyTorch's TCPStore binds with SO_REUSEADDR, too.
    with socket.create_server(("", first), backlog=1) as rank:
        assert rank.getsockname()[1] == first
    ports.release("17")
    _bind_any_of(first)


def _bind_any_of(port: int) -> None:
    """Ask the kernel for any free port of a range that contains only this one."""
    ip_local_port_range = 51  # Linux 6.3
    with socket.socket() as other:
        try:
            other.setsockopt(socket.IPPROTO_IP, ip_local_port_range, struct.pack("I", port | port << 16))
        except OSError:
            pytest.skip("the kernel has no IP_LOCAL_PORT_RANGE")
        other.bind(("", 0))


# ----------------------------------------------------------------------------------------------------- secrets


def test_secrets_are_files_of_the_node(tmp_path: Path) -> None:
    """A job names them by reference; the newline at the end of a file is not part of the secret."""
    (tmp_path / "team").mkdir()
    (tmp_path / "team" / "token").write_text("s3cret\n")
    assert read_secrets(tmp_path, {"TOKEN": "secret:team/token"}) == {"TOKEN": "s3cret"}


@pytest.mark.parametrize(
    "reference",
    [
        *("token", "secret:../token", "secret:/etc/passwd", "secret:"),
        *("secret:absent", "secret:link", "secret:folder", "secret:binary", "secret:nul"),
    ],
)
def test_a_secret_that_cannot_be_read_is_named(tmp_path: Path, reference: str, wording: Wording) -> None:
    """The error has the variable and the reference, and never the file's content."""
    (tmp_path / "folder").mkdir()
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    (tmp_path / "nul").write_bytes(b"a\0b")
    (tmp_path / "link").symlink_to("/etc/passwd")
    with pytest.raises(SecretError, match=f"env_from.TOKEN.*{reference}") as refused:
        read_secrets(tmp_path, {"TOKEN": reference})
    wording(refused.value, folder=tmp_path)


def test_a_node_without_secrets_names_the_option(wording: Wording) -> None:
    """Secrets are read from nowhere else."""
    with pytest.raises(SecretError, match=r"--secrets-dir DIR.*DIR/a$") as refused:
        read_secrets(None, {"TOKEN": "secret:a"})
    wording(refused.value)
