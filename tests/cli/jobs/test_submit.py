"""`gavel submit` against a real daemon: command lines, job files, dry runs, and what is wrong with any of them."""

import json
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from gavel.client import Client
from gavel.client.results import Preview
from tests.cli.conftest import Gavel
from tests.cli.live import finish, live  # noqa: F401
from tests.support.live_thread import LiveThread

HELD = ("--", "true")


def test_a_command_line_is_a_job(live: LiveThread, gavel: Gavel, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    """Flags as fields; what stands behind -- is the user's own, dashes and all; it runs where one is."""
    monkeypatch.setenv("MINE", "taken along")
    said = gavel("submit", "--label", "", "--", "a")
    assert (said.exit_code, said.stderr) == (2, "gavel submit: --label : must be KEY=VALUE\n")
    said = gavel(
        *("submit", "-n", "chat", "-g", "1-2", "--memory", "16GB", "-t", "v100"),
        *("-e", "A=b=c", "-e", "MINE", "--retries", "2", "--not-packable", "--time-limit", "2h"),
        *("--", "python", "train.py", "--gpus", "7", "--", "x"),
    )
    assert (said.exit_code, said.stdout) == (0, "submitted job 1\n")
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
    ("arguments", "line"),
    [
        (
            ("--gpus", "two", "--", "a"),
            "--gpus: must be a whole number from 1 to 1,000,000, or a range such as 2-8",
        ),
        (("--memory", "16", "--", "a"), "--memory: must be a size such as 16GB"),
        (("--worker-type", "", "--", "a"), "--worker-type [0]: must be a name".replace(" [0]", "")),
        (("--rate", "a100=x", "--", "a"), "--rate a100: must be a number above 0"),
        (("--after", "17:done", "--", "a"), "--after: when must be"),
        (("--after", "afterok:17", "--", "a"), "--after: here afterok:17 is 17"),
        (("--after", "afterany:17", "--", "a"), "--after: here afterany:17 is 17:ended"),
        (("--partition", "a100", "--", "a"), "no such option '--partition'; here it is --worker-type"),
        (("--output", "out", "--", "a"), "no such option '--output'; here it is `gavel logs JOB`"),
        (
            ("python", "a.py"),
            "python: no such file or directory; a command goes after --: `gavel submit -- python a.py`",
        ),
        (("--key", "", "--", "a"), "--key: is empty"),
        (("--array", "0-9%2", "--", "a"), "--array: "),
        (("-e", "NOT_SET_HERE", "--", "a"), "--env NOT_SET_HERE: there is no such variable here"),
        (("-e", "=x", "--", "a"), "--env =x: must be KEY=VALUE"),
        (("--env-from", "T", "--", "a"), "--env-from T: must be VARIABLE=SECRET, the name of a secret"),
        (("--deadline", "2001-01-01", "--", "a"), "--deadline: is in the past"),
        ((), "give a job file, or a command after --"),
        (("--",), "no command after --"),
        (("job.yaml", "--", "a"), "give either job files or a command, not both"),
        (("missing.yaml",), "missing.yaml: no such file or directory"),
        (("--follow", "--array", "0-1", "--", "a"), "--follow shows one job"),
        (("--address", "a b", "--", "a"), "address: 'a b' is not HOST:PORT"),
    ],
)
def test_wrong_input_is_one_line(gavel: Gavel, arguments: tuple[str, ...], line: str) -> None:
    """Before anybody is called; exit code 2."""
    said = gavel("submit", *arguments)
    assert (said.exit_code, said.stdout) == (2, "")
    assert said.stderr.startswith(f"gavel submit: {line}"), said.stderr
    assert said.stderr.count("\n") == 1


def test_a_script_is_no_job_file(gavel: Gavel, tmp_path: Path) -> None:
    """It is said what to do with it, instead of what YAML thinks of it."""
    for name, text in (
        ("job.sh", "#SBATCH --gpus=1\nsrun a\n"),
        ("job", "#!/bin/sh\na: b: c\n"),
        ("a.py", "x = 1\n"),
    ):
        path = tmp_path / name
        path.write_text(text)
        said = gavel("submit", str(path))
        assert (said.exit_code, said.stderr.count("\n")) == (2, 1)
        assert f"{path}: is a script, not a job file: say what runs it behind --" in said.stderr
    path.write_text("#!/usr/bin/env -S gavel submit\nx = 1\n")
    assert "a.py: is a script" in gavel("submit", str(path)).stderr
    job = tmp_path / "job.yaml"
    job.write_text("#!/usr/bin/env -S gavel submit\nx = 1\n")
    assert "line 2: must be a job" in gavel("submit", str(job)).stderr


def test_secrets_in_the_clear_are_remarked_on(live: LiveThread, gavel: Gavel) -> None:  # noqa: F811
    """By names that speak for themselves; those of machine learning that only look so are left alone."""
    said = gavel("submit", "-e", "WANDB_API_KEY=s3cret", "-e", "MAX_TOKENS=5", *HELD)
    assert said.exit_code == 0
    assert said.stderr == (
        "env WANDB_API_KEY: the value is kept and shown like any other; `--env-from WANDB_API_KEY=NAME` has the "
        "nodes put a secret there (docs/job-file.md)\n"
    )
    assert gavel("submit", "-e", "MAX_TOKENS=5", "--env-from", "WANDB_API_KEY=wandb", *HELD).stderr == ""
    said = gavel("submit", "--env-from", "WANDB_API_KEY=hf/s3cret", *HELD)
    assert "env_from.WANDB_API_KEY: must be the name of a secret that the nodes keep" in said.stderr
    assert "s3cret" not in said.stderr


def test_gpu_memory_that_nobody_tells_is_remarked_on(live: LiveThread, gavel: Gavel) -> None:  # noqa: F811
    """The job is taken, as such GPUs may have it; nothing is said where all GPUs are known, or it does not ask."""
    live.do(live.daemon.node("n8", worker_type="declared"))
    live.do(live.daemon.node("n9", worker_type="told", gpu_memory_gb=80.0))
    said = gavel("submit", "--gpu-memory", "900GB", "-t", "declared", *HELD)
    assert (said.exit_code, said.stdout) == (0, "submitted job 1\n")
    assert said.stderr == (
        "gpu_memory cannot be checked on declared: agents there do not report it; those with declared GPUs do with "
        "`--gpus declared=COUNT:memory=GB`\n"
    )
    assert gavel("submit", "--gpu-memory", "40GB", "-t", "told", *HELD).stderr == ""
    assert gavel("submit", "-t", "declared", *HELD).stderr == ""
    said = gavel("submit", "--gpu-memory", "900GB", "-t", "told", *HELD)
    assert (said.exit_code, said.stdout) == (2, "")


def test_a_deadline_that_nobody_keeps_is_remarked_on(live: LiveThread, gavel: Gavel) -> None:  # noqa: F811
    """By the policy, and by what it has to know; `show` says when it is due, and that it is missed."""
    said = gavel("submit", "--deadline", "2s", "--steps", "1e6", "--dry-run", *HELD)
    assert said.stderr == (
        "deadline: the policy of this cluster (max_min_fairness) does not look at deadlines, so it may be missed; "
        "max_throughput, min_cost, throughput_per_cost keep them\n"
    )
    assert gavel("policy", "set", "max_throughput").exit_code == 0
    assert "without `steps`" in gavel("submit", "--deadline", "60h30m", *HELD).stderr
    assert gavel("submit", "--deadline", "0.001s", "--steps", "5", *HELD).stderr == ""
    assert " (in 2d12h)\n" in gavel("show", "1").stdout
    due = next(line for line in gavel("show", "2").stdout.splitlines() if line.startswith("  due "))
    assert re.search(r"\(\d+s ago, missed\)$", due)
    finish(live, "2")
    due = next(line for line in gavel("show", "2").stdout.splitlines() if line.startswith("  due "))
    assert re.search(r", missed by \d+s\)$", due)


@pytest.mark.parametrize(
    ("text", "options", "noted"),
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
def test_state_that_an_upload_leaves_behind_is_remarked_on(
    live: LiveThread,  # noqa: F811
    gavel: Gavel,
    tmp_path: Path,
    text: str,
    options: tuple[str, ...],
    noted: bool,
) -> None:
    """A script of the upload that keeps its state nowhere loses it with the attempt; others are left alone."""
    (tmp_path / "train.py").write_text(text)
    said = gavel("submit", "--dry-run", "--workdir", str(tmp_path), *options, "--", "python", "train.py")
    assert said.exit_code == 0
    assert ("train.py names neither gavel.training nor" in said.stderr) is noted


def test_job_files_with_flags_over_them(live: LiveThread, gavel: Gavel, tmp_path: Path) -> None:  # noqa: F811
    """Flags hold for all jobs of all files; --json is one object."""
    path = tmp_path / "job.yaml"
    path.write_text("command: [a]\ngpus: 1\nweight: 2\n---\nscript: b\narray: 0-1\n")
    said = gavel("submit", str(path), "--gpus", "2", "--json", "--key", "k")
    assert json.loads(said.stdout) == {"jobs": ["1", "2_0", "2_1"]}
    assert said.stdout == gavel("submit", str(path), "--gpus", "2", "--json", "--key", "k").stdout
    specs = [live.daemon.world.state.jobs[job].spec for job in ("1", "2_0")]
    assert [(spec.gpus, spec.weight) for spec in specs] == [(2, 2.0), (2, 1.0)]
    again = gavel("submit", str(path), "--gpus", "1", "--key", "k")
    assert (
        again.exit_code,
        again.stderr,
    ) == (6, "gavel submit: the key 'k' was used for another submission\n")


def test_what_the_scheduler_objects_to_is_shown_in_the_file(
    live: LiveThread,  # noqa: F811
    gavel: Gavel,
    tmp_path: Path,
) -> None:
    """File, line and field; and dry, the same without submitting."""
    path = tmp_path / "job.yaml"
    path.write_text("command: [a]\n\ngpus: 64\n")
    said = gavel("submit", str(path))
    assert said.exit_code == 2
    assert said.stderr.startswith(f"gavel submit: {path}: line 3: gpus: asks for 64 of one worker type")
    dry = gavel("submit", "--dry-run", str(path))
    assert (
        dry.exit_code,
        f"job: would be refused: {path}: line 3: gpus: asks for" in dry.stdout,
    ) == (2, True)


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
    live: LiveThread,  # noqa: F811
    gavel: Gavel,
    option: str,
    value: str,
    least_and_most: str,
) -> None:
    """The scheduler knows the limits, so the client sends what it can and shows the refusal."""
    refused = gavel("submit", option, value, "--", "a")
    assert (refused.exit_code, least_and_most in refused.stderr) == (2, True)


def test_a_dry_run(live: LiveThread, gavel: Gavel) -> None:  # noqa: F811
    """Whether it would be taken, where it could run, when; and nothing is submitted."""
    said = gavel("submit", "--dry-run", "-g", "2", "-n", "chat", *HELD)
    assert said.exit_code == 0
    assert said.stdout.startswith("job 'chat': would be accepted; expected start ")
    assert "  type  GPUs  steps/s  free  nodes\n  v100     2" in said.stdout
    (preview,) = json.loads(gavel("submit", "--dry-run", "--json", "-g", "2", *HELD).stdout)
    assert {one.name for one in fields(Preview)} == set(preview)
    assert not live.daemon.world.state.jobs


def test_the_schema_needs_no_scheduler(gavel: Gavel) -> None:
    """It is of the files, not of the cluster."""
    assert "gpus" in json.loads(gavel("submit", "--schema").stdout)["$defs"]["fields"]["properties"]


def test_a_number_of_gpus_goes_before_a_range(live: LiveThread, gavel: Gavel, tmp_path: Path) -> None:  # noqa: F811
    """The whole of what the file says of them: nothing of its range is left."""
    path = tmp_path / "job.yaml"
    path.write_text("command: [a]\ngpus: 1-2\n")
    gavel("submit", str(path))
    gavel("submit", str(path), "-g", "2")
    specs = [live.daemon.world.state.jobs[job].spec for job in ("1", "2")]
    assert [(spec.gpus, spec.narrowest, spec.widest) for spec in specs] == [(1, 1, 2), (2, 2, 2)]


def test_the_directory_of_a_file_can_be_sent(live: LiveThread, gavel: Gavel, tmp_path: Path) -> None:  # noqa: F811
    """`--upload` on the command line means the directory beside the job file, and sends it."""
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "job.yaml").write_text("command: [python, train.py]\n")
    (folder / "train.py").write_text("print(1)\n")
    said = gavel("submit", str(folder / "job.yaml"), "--upload")
    assert (said.exit_code, said.stderr) == (0, "")
    launch = live.daemon.world.state.jobs["1"].spec.launch
    assert launch is not None
    assert live.daemon.people.packages.has(launch.upload)
    assert launch.workdir == ""


def test_ctrl_c_while_following(live: LiveThread, gavel: Gavel, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    """The job goes on, and it is said how to end it: elsewhere Ctrl-C does."""

    def press(*_: Any, **__: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(Client, "logs", press)
    said = gavel("submit", "--follow", *HELD)
    assert (said.exit_code, said.stdout) == (130, "submitted job 1\n")
    words = "not cancelled: job 1; `gavel cancel 1` does that\ngavel: interrupted\n"
    assert said.stderr == words
