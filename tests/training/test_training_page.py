"""The programs of docs/training.md work."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.training.leases import ROOT, Process, RunDirectory, eventually, job_path

pytest.importorskip("torch", reason="torch is not installed")

PAGE = (ROOT / "docs" / "training.md").read_text(encoding="utf-8")


def program_below(heading: str) -> str:
    """The program below a heading."""
    match = re.search(rf"^#+ {heading}\n.*?```python\n(.*?)```", PAGE, re.MULTILINE | re.DOTALL)
    assert match is not None, f"docs/training.md shows no program under '{heading}'"
    return match[1]


def run(text: str, place: Path) -> str:
    """Run a program as a user would, in an empty directory."""
    done = subprocess.run(
        [sys.executable, "-c", text],
        cwd=place,
        env={"PYTHONPATH": job_path(place), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_first_script_runs_and_continues(tmp_path: Path) -> None:
    """The script trains and saves a model; its variant with epochs continues from that checkpoint."""
    text = program_below("With LeasedIterator")
    run(text, tmp_path)
    assert (tmp_path / "model.pt").exists()
    per_epoch = program_below("Work per epoch")
    before = text[: text.index("for inputs")].replace("steps=200, ", "")
    counted = "trained = []\ntrain = lambda *_: trained.append(1)\nvalidate = lambda: print('validated')\n"
    printed = run(f"{before}{counted}{per_epoch}print(steps.step, steps.epoch, len(trained))", tmp_path)
    # 1,000 samples in batches of 32 are 32 batches; 200 steps were done: 8 of the 7th epoch
    assert printed.splitlines()[-1] == "320 10 120"
    assert printed.count("validated") == 4


def test_the_cached_data_set_reads_its_files(tmp_path: Path) -> None:
    """Without a cache the program reads the files, each once an epoch."""
    (tmp_path / "data").mkdir()
    for number in range(20):
        (tmp_path / "data" / f"{number}").write_bytes(bytes(number))
    before = "trained = []\ntrain = trained.extend\n"
    printed = run(
        f"{before}{program_below('Read data once per node')}print(sorted(map(int, trained)))", tmp_path
    )
    assert printed == f"{list(range(20))}\n"


def probed(place: Path, heading: str, name: str, picture: bytes) -> dict[str, Any]:
    """Return the answer of a probe of a script of the page, as typed there but shorter, on small pictures.

    What takes time takes 5 times as long, so that it is long beside what a sleep takes longer on a busy machine.
    """
    slower, sleeps = re.subn(r"time\.sleep\((.*)\)(?=  #)", r"time.sleep(5 * (\1))", program_below(heading))
    assert sleeps == 2
    (place / f"{name}.py").write_text(slower)
    (place / "pictures").mkdir()
    for number in range(64):
        (place / "pictures" / f"{number}.raw").write_bytes(picture)
    match = re.search(rf"```yaml\n# {name}.yaml\n(.*?)```", PAGE, re.DOTALL)
    assert match is not None
    (place / f"{name}.yaml").write_text(match[1].replace("[python,", f"[{sys.executable},"))
    command = ("gavel", "probe", f"{name}.yaml", "--local", "--data", "pictures", "--steps", "8", "--json")
    done = subprocess.run(
        [sys.executable, "-m", *command],
        cwd=place,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in place.iterdir()) == ["pictures", f"{name}.py", f"{name}.yaml"]
    answer: dict[str, Any] = json.loads(done.stdout)
    assert (answer["loading"], answer["workers"], answer["cold"]["dropped"]) == ("workers", 2, 64)
    return answer


def test_the_starved_script_wants_cpus(tmp_path: Path) -> None:
    """The probe names preparation as what the script waits for."""
    answer = probed(tmp_path, r"Is the GPU waiting for data\?", "starved", bytes(1024))
    assert answer["prep"] > 0.2
    assert answer["prep"] > answer["fetch"]


def test_the_remote_script_wants_a_cache(tmp_path: Path) -> None:
    """The probe names reading as what the script waits for, and the cache as the cure."""
    answer = probed(tmp_path, "Cured by a cache", "remote", bytes(100_000))
    assert answer["fetch"] > 0.2
    assert answer["fetch"] > answer["prep"]
    assert (answer["best"]["change"], answer["best"]["to"]) == ("cache", 1.0)


def test_a_custom_loop_runs(tmp_path: Path) -> None:
    """The loop counts to its end."""
    run(program_below("With a loop of one's own"), tmp_path)
    assert (tmp_path / "state.txt").read_text() == "200"


def test_a_loop_of_ones_own_continues_from_its_state(tmp_path: Path) -> None:
    """Each attempt has its own working directory, as with an upload, and continues from the last one's state."""
    text = program_below("With a loop of one's own").replace("while ", "import time; print(step)\nwhile ", 1)
    slow = text.replace("    step += 1\n", "    step += 1; time.sleep(0.05)\n")
    first, second = (RunDirectory(tmp_path / f"run-{number}", attempt=number) for number in (1, 2))
    process = started(first, slow, tmp_path)
    eventually(lambda: first.progress().get("steps", 0) > 0)
    first.write_lease(ask_in_s=0.0)
    assert process.wait() == 0, process.text()
    yielded = first.progress()
    assert yielded["state"] == "yielded"
    assert 0 < yielded["saved"] == yielded["steps"] < 200
    process = started(second, text, tmp_path)
    assert process.wait() == 0, process.text()
    assert process.text() == f"{yielded['saved']}\n"
    assert (second.progress()["state"], second.progress()["saved"]) == ("finished", 200)
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["state.txt.e00000003-a00000002"]


def started(lease: RunDirectory, program: str, place: Path) -> Process:
    """Start a program under a lease, in a working directory of its own."""
    work = place / f"work-{lease.attempt}"
    work.mkdir()
    environ = lease.environ(GAVEL_CHECKPOINT_DIR=place / "checkpoints")
    return Process(["-c", program], environ, work / "output", job_path(place))


def test_the_errors_of_the_page_are_those_of_the_code() -> None:
    """Every error that the last table quotes occurs in the library."""
    code = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "gavel" / "training").rglob("*.py"))
    quoted = re.findall(r"^\| `(.*?)` \|", PAGE[PAGE.index("## When something is wrong") :], re.MULTILINE)
    assert len(quoted) == 7
    for words in ("StaleAttempt", "the part of rank", "has no length", "is skipped", "is damaged"):
        assert words in code
    for words in quoted[4:]:
        assert words.removesuffix(" model") in code
