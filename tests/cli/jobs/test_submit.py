"""`gavel submit` against a real daemon: command lines, job files, dry runs, and their refusals."""

import json
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from gavel.client import Client
from gavel.client.results import Preview
from tests.cli.conftest import Gavel, as_words
from tests.cli.live import finish
from tests.support.live_thread import LiveThread
from tests.support.wording import Wording

RUN = ("--", "true")


def test_a_command_line_is_a_job(
    live: LiveThread, gavel: Gavel, monkeypatch: pytest.MonkeyPatch, wording: Wording
) -> None:
    """Options become fields, the words after -- become the command, and the job runs in this directory."""
    monkeypatch.setenv("MINE", "taken along")
    result = gavel("submit", "--label", "", "--", "a")
    assert (result.exit_code, result.stderr.startswith("gavel submit: --label")) == (2, True)
    wording(result.stderr)
    result = gavel(
        *("submit", "-n", "chat", "-g", "1-2", "--memory", "16GB", "-t", "v100"),
        *("-e", "A=b=c", "-e", "MINE", "--retries", "2", "--not-packable", "--time-limit", "2h"),
        *("--", "python", "train.py", "--gpus", "7", "--", "x"),
    )
    assert result.exit_code == 0
    wording(result.stdout)
    spec = live.daemon.world.state.jobs["1"].spec
    assert spec.launch is not None
    assert spec.launch.command == ("python", "train.py", "--gpus", "7", "--", "x")
    assert ({"A": "b=c", "MINE": "taken along"}, str(Path.cwd())) == (
        spec.launch.env,
        spec.launch.workdir,
    )
    assert (
        *(spec.name, spec.gpus_min, spec.gpus_max, spec.memory_gb, spec.worker_types),
        *(spec.retries, spec.packable, spec.time_limit_s),
    ) == ("chat", 1, 2, 16.0, ("v100",), 2, False, 7200.0)


@pytest.mark.parametrize(
    ("arguments", "place"),
    [
        (("--gpus", "two", "--", "a"), "--gpus: "),
        (("--memory", "16", "--", "a"), "--memory: "),
        (("--worker-type", "", "--", "a"), "--worker-type: "),
        (("--rate", "a100=x", "--", "a"), "--rate a100: "),
        (("--after", "17:done", "--", "a"), "--after: "),
        (("--after", "afterok:17", "--", "a"), "--after: "),
        (("--after", "afterany:17", "--", "a"), "--after: "),
        (("--partition", "a100", "--", "a"), "no such option '--partition'"),
        (("--output", "out", "--", "a"), "no such option '--output'"),
        (("python", "a.py"), "python: "),
        (("--key", "", "--", "a"), "--key: "),
        (("--array", "0-9%2", "--", "a"), "--array: "),
        (("-e", "NOT_SET_HERE", "--", "a"), "--env NOT_SET_HERE: "),
        (("-e", "=x", "--", "a"), "--env =x: "),
        (("--env-from", "T", "--", "a"), "--env-from T: "),
        (("--deadline", "2001-01-01T00:00Z", "--", "a"), "--deadline: "),
        ((), ""),
        (("--",), ""),
        (("job.yaml", "--", "a"), ""),
        (("missing.yaml",), "missing.yaml: "),
        (("--follow", "--array", "0-1", "--", "a"), "--follow "),
        (("--address", "a b", "--", "a"), "address: "),
    ],
    ids=as_words,
)
def test_wrong_input_is_one_line(
    gavel: Gavel, arguments: tuple[str, ...], place: str, wording: Wording
) -> None:
    """Wrong input is one line that begins with the option or file, before any call. Exit code 2."""
    result = gavel("submit", *arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith(f"gavel submit: {place}"), result.stderr
    assert result.stderr.count("\n") == 1
    wording(result.stderr)


def test_a_script_is_no_job_file(gavel: Gavel, tmp_path: Path, wording: Wording) -> None:
    """A script given as a job file is refused with the way to run it, not with an error of YAML."""
    for name, text in (
        ("job.sh", "#SBATCH --gpus=1\nsrun a\n"),
        ("job", "#!/bin/sh\na: b: c\n"),
        ("a.py", "x = 1\n"),
    ):
        path = tmp_path / name
        path.write_text(text)
        result = gavel("submit", str(path))
        assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
        assert (f"{path}: " in result.stderr, "--" in result.stderr) == (True, True)
        wording(result.stderr, folder=tmp_path)
    # A file whose first line names gavel is a job file, unless its name ends in .py.
    path.write_text("#!/usr/bin/env -S gavel submit\nx = 1\n")
    wording(gavel("submit", str(path)).stderr, folder=tmp_path)
    job = tmp_path / "job.yaml"
    job.write_text("#!/usr/bin/env -S gavel submit\nx = 1\n")
    result = gavel("submit", str(job))
    assert f"{job}: line 2: " in result.stderr
    wording(result.stderr, folder=tmp_path)


def test_a_secret_in_env_is_a_warning(live: LiveThread, gavel: Gavel, wording: Wording) -> None:
    """A variable named like a secret causes a warning; names usual in machine learning, such as MAX_TOKENS, do not."""
    result = gavel("submit", "-e", "WANDB_API_KEY=s3cret", "-e", "MAX_TOKENS=5", *RUN)
    assert (result.exit_code, "WANDB_API_KEY" in result.stderr, "s3cret" in result.stderr) == (0, True, False)
    wording(result.stderr)
    assert gavel("submit", "-e", "MAX_TOKENS=5", "--env-from", "WANDB_API_KEY=wandb", *RUN).stderr == ""
    result = gavel("submit", "--env-from", "WANDB_API_KEY=hf/s3cret", *RUN)
    assert ("env_from.WANDB_API_KEY: " in result.stderr, "s3cret" in result.stderr) == (True, False)
    wording(result.stderr)


def test_unreported_gpu_memory_is_a_warning(live: LiveThread, gavel: Gavel, wording: Wording) -> None:
    """GPUs of unknown memory may suffice, so the job is accepted with a warning; known memory is checked."""
    live.do(live.daemon.node("n8", worker_type="declared"))
    live.do(live.daemon.node("n9", worker_type="reported", gpu_memory_gb=80.0))
    result = gavel("submit", "--gpu-memory", "900GB", "-t", "declared", *RUN)
    assert (result.exit_code, "1" in live.daemon.world.state.jobs) == (0, True)
    assert ("gpu_memory" in result.stderr, "declared" in result.stderr) == (True, True)
    wording(result.stderr)
    assert gavel("submit", "--gpu-memory", "40GB", "-t", "reported", *RUN).stderr == ""
    assert gavel("submit", "-t", "declared", *RUN).stderr == ""
    result = gavel("submit", "--gpu-memory", "900GB", "-t", "reported", *RUN)
    assert (result.exit_code, result.stdout) == (2, "")


def test_a_plan_that_needs_more_memory_than_a_node_has_is_a_warning(
    live: LiveThread, gavel: Gavel, tmp_path: Path, wording: Wording
) -> None:
    """Nodes of one type may differ in memory. The warning names a minimum, with which there is none."""
    live.do(live.daemon.node("n8", worker_type="v100", gpu_memory_gb=16.0))
    live.do(live.daemon.node("n9", worker_type="v100", gpu_memory_gb=32.0))
    path = tmp_path / "plans.json"
    plans = [
        {"worker_type": "v100", "gpus": n, "step_s": 1.0, "data": n, "memory_bytes": 28e9 / n} for n in (1, 2)
    ]
    path.write_text(json.dumps(plans))
    submit = ("submit", "--plan", str(path), "--job-type", "gpt", "--start", "1h")
    result = gavel(*submit, *RUN)
    assert (result.exit_code, "t1·p1·d1" in result.stderr, "n8" in result.stderr) == (0, True, True)
    wording(result.stderr)
    assert gavel(*submit, "--gpus", "2", *RUN).stderr == ""
    # The GPUs of the other nodes of this cluster have an unknown memory.
    assert "n8" not in gavel(*submit, "--gpu-memory", "28GB", *RUN).stderr


def test_a_deadline_that_is_not_kept_is_a_warning(live: LiveThread, gavel: Gavel, wording: Wording) -> None:
    """`submit` warns if the policy ignores deadlines or the steps are unknown; `show` has the deadline and a miss."""
    result = gavel("submit", "--deadline", "2s", "--steps", "1e6", "--dry-run", *RUN)
    assert (result.exit_code, result.stderr.startswith("deadline: ")) == (0, True)
    wording(result.stderr)
    assert gavel("policy", "set", "max_throughput").exit_code == 0
    result = gavel("submit", "--deadline", "60h30m", *RUN)
    assert (result.exit_code, "`steps`" in result.stderr) == (0, True)
    wording(result.stderr)
    assert gavel("submit", "--deadline", "0.001s", "--steps", "5", *RUN).stderr == ""
    assert " (in 2d12h)\n" in gavel("show", "1").stdout
    due_line = next(line for line in gavel("show", "2").stdout.splitlines() if line.startswith("  due "))
    assert re.search(r"\(\d+s ago, missed\)$", due_line)
    finish(live, "2")
    due_line = next(line for line in gavel("show", "2").stdout.splitlines() if line.startswith("  due "))
    assert re.search(r", missed by \d+s\)$", due_line)


@pytest.mark.parametrize(
    ("text", "options", "warned"),
    [
        ("open('state.txt', 'w').write('1')", ("--upload",), True),
        ("from gavel.training import save_text; save_text(1)", ("--upload",), False),
        ("torch.save(model, 'model.pt')", ("--upload",), True),
        ("print('write this')", ("--upload",), False),
        ("open(os.environ['GAVEL_CHECKPOINT_DIR'] + '/state', 'w')", ("--upload",), False),
        ("open('state.txt', 'w').write('1')", (), False),
        ("open('state.txt', 'w').write('1')", ("--upload", "--not-preemptible"), False),
    ],
)
def test_a_script_that_saves_no_checkpoint_is_a_warning(
    live: LiveThread,
    gavel: Gavel,
    tmp_path: Path,
    text: str,
    options: tuple[str, ...],
    warned: bool,
    wording: Wording,
) -> None:
    """An uploaded script that writes files, but no checkpoint, would lose its state with the attempt."""
    (tmp_path / "train.py").write_text(text)
    result = gavel("submit", "--dry-run", "--workdir", str(tmp_path), *options, "--", "python", "train.py")
    assert result.exit_code == 0
    assert ("train.py" in result.stderr) is warned
    if warned:
        wording(result.stderr, folder=tmp_path)


@pytest.mark.parametrize(
    ("options", "warned"),
    [
        (("-g", "2", "--", "torchrun", "train.py"), True),
        (("-g", "2", "--", "python", "-m", "torch.distributed.run", "train.py"), True),
        (("-g", "2", "--", "sh", "-c", "cd x && accelerate launch train.py"), True),
        (("-g", "2", "--ranks", "per_node", "--", "torchrun", "train.py"), False),
        (("-g", "1", "--", "torchrun", "train.py"), False),
        (("-g", "2", "--", "python", "torchrun_helper.py"), False),
    ],
)
def test_a_launcher_per_gpu_is_a_warning(
    live: LiveThread, gavel: Gavel, options: tuple[str, ...], warned: bool, wording: Wording
) -> None:
    """A launcher that starts a process per GPU must be started once per node."""
    live.do(live.daemon.node("wide", gpus=2))
    result = gavel("submit", "--dry-run", *options)
    assert (result.exit_code, result.stderr.startswith("ranks: ")) == (0, warned)
    if warned:
        wording(result.stderr)


@pytest.mark.parametrize(
    ("line", "warned"),
    [
        *(("#SBATCH --gpus=4", True), ("#PBS -l ngpus=4", True), ("# SBATCH is not here", False)),
        *(("echo $SKYPILOT_NODE_RANK", True), ("echo ${SLURM_JOB_ID:-0}", True), ("echo SLURM_", False)),
    ],
)
def test_lines_for_another_scheduler_are_a_warning(
    live: LiveThread,
    gavel: Gavel,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    line: str,
    warned: bool,
    wording: Wording,
) -> None:
    """A script's lines for Slurm or PBS ask for nothing here, and their variables are not set."""
    monkeypatch.chdir(tmp_path)
    Path("job.sh").write_text(f"#!/bin/bash\n{line}\npython train.py\n")
    result = gavel("submit", "--dry-run", "--", "bash", "job.sh")
    assert (result.exit_code, result.stderr.startswith("job.sh: ")) == (0, warned)
    if warned:
        wording(result.stderr)


def test_job_files_with_flags_over_them(
    live: LiveThread, gavel: Gavel, tmp_path: Path, wording: Wording
) -> None:
    """Options apply to every job of every file; `--json` prints one object."""
    path = tmp_path / "job.yaml"
    path.write_text("command: [a]\ngpus: 1\nweight: 2\n---\nscript: b\narray: 0-1\n")
    result = gavel("submit", str(path), "--gpus", "2", "--json", "--key", "k")
    assert json.loads(result.stdout) == {"jobs": ["1", "2_0", "2_1"]}
    assert result.stdout == gavel("submit", str(path), "--gpus", "2", "--json", "--key", "k").stdout
    specs = [live.daemon.world.state.jobs[job].spec for job in ("1", "2_0")]
    assert [(spec.gpus, spec.weight) for spec in specs] == [(2, 2.0), (2, 1.0)]
    again = gavel("submit", str(path), "--gpus", "1", "--key", "k")
    assert (again.exit_code, "'k'" in again.stderr) == (6, True)
    wording(again.stderr)


def test_a_refusal_of_the_scheduler_names_the_line(
    live: LiveThread, gavel: Gavel, tmp_path: Path, wording: Wording
) -> None:
    """A refusal names file, line and field, and a dry run reports the same without submitting."""
    path = tmp_path / "job.yaml"
    path.write_text("command: [a]\n\ngpus: 64\n")
    result = gavel("submit", str(path))
    assert result.exit_code == 2
    assert result.stderr.startswith(f"gavel submit: {path}: line 3: gpus: ")
    wording(result.stderr, path=path)
    dry = gavel("submit", "--dry-run", str(path))
    assert (dry.exit_code, f"{path}: line 3: gpus: " in dry.stdout) == (2, True)
    wording(dry.stdout, path=path)


@pytest.mark.parametrize(
    ("option", "value", "least_and_most"),
    [
        ("--memory", "1e308GB", "0.001 and 10,000,000 GB"),
        ("--memory", "1000000000000TB", "0.001 and 10,000,000 GB"),
        ("--time-limit", "100000000000h", "0.001 and 10,000,000,000 s"),
        ("--deadline", "100000000000h", "0 and 10,000,000,000 s"),
    ],
)
def test_a_number_that_is_too_large_is_refused_with_the_limits(
    live: LiveThread, gavel: Gavel, option: str, value: str, least_and_most: str
) -> None:
    """The client sends a number whose limits it does not have, and prints the limits in the scheduler's refusal."""
    refused = gavel("submit", option, value, "--", "a")
    assert (refused.exit_code, least_and_most in refused.stderr) == (2, True)


def test_a_dry_run(live: LiveThread, gavel: Gavel, wording: Wording) -> None:
    """A dry run reports whether the job would be accepted, where it could run and when; it submits nothing."""
    result = gavel("submit", "--dry-run", "-g", "2", "-n", "chat", *RUN)
    assert result.exit_code == 0
    heading = next(line.split() for line in result.stdout.splitlines() if "nodes" in line)
    row = next(line.split() for line in result.stdout.splitlines() if line.startswith("  v100 "))
    assert (heading[:2], row[:2]) == (["type", "GPUs"], ["v100", "2"])
    wording(result.stdout.splitlines()[0], time=re.compile(r"(?<=expected start ).*"))
    (preview,) = json.loads(gavel("submit", "--dry-run", "--json", "-g", "2", *RUN).stdout)
    assert {field.name for field in fields(Preview)} == set(preview)
    assert not live.daemon.world.state.jobs


def test_the_schema_needs_no_scheduler(gavel: Gavel) -> None:
    """`--schema` describes job files, not a cluster, and prints without one."""
    assert "gpus" in json.loads(gavel("submit", "--schema").stdout)["$defs"]["fields"]["properties"]


def test_a_number_of_gpus_goes_before_a_range(live: LiveThread, gavel: Gavel, tmp_path: Path) -> None:
    """`-g 2` replaces both ends of the range in the file."""
    path = tmp_path / "job.yaml"
    path.write_text("command: [a]\ngpus: 1-2\n")
    gavel("submit", str(path))
    gavel("submit", str(path), "-g", "2")
    specs = [live.daemon.world.state.jobs[job].spec for job in ("1", "2")]
    assert [(spec.gpus, spec.narrowest, spec.widest) for spec in specs] == [(1, 1, 2), (2, 2, 2)]


def test_the_directory_of_a_file_can_be_sent(live: LiveThread, gavel: Gavel, tmp_path: Path) -> None:
    """`--upload` with a job file uploads the directory that the file lies in."""
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "job.yaml").write_text("command: [python, train.py]\n")
    (folder / "train.py").write_text("print(1)\n")
    result = gavel("submit", str(folder / "job.yaml"), "--upload")
    assert (result.exit_code, result.stderr) == (0, "")
    launch = live.daemon.world.state.jobs["1"].spec.launch
    assert launch is not None
    assert live.daemon.people.packages.has(launch.upload)
    assert launch.workdir == ""


def test_ctrl_c_while_following(
    live: LiveThread, gavel: Gavel, monkeypatch: pytest.MonkeyPatch, wording: Wording
) -> None:
    """Ctrl-C ends the command, not the job, and the message names the command that cancels it."""

    def press(*_: Any, **__: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(Client, "log_chunks", press)
    result = gavel("submit", "--follow", *RUN)
    assert (result.exit_code, "`gavel cancel 1`" in result.stderr) == (130, True)
    assert live.daemon.world.state.jobs["1"].state != "cancelled"
    wording(result.stderr)
