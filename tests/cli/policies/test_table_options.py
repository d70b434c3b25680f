"""Options that choose parts of published tables: measurements, pairs, and the cloud whose prices apply."""

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Gavel, as_words
from tests.support.wording import Wording

RATES = """source,job_type,scale_factor,gpu_type,throughput_steps_per_s
slow,cnn,1,v100,10
fast,cnn,1,v100,20
"""
PAIRS = """source,job_type_a,scale_a,job_type_b,scale_b,gpu_type,throughput_a,throughput_b
fast,cnn,1,cnn,1,v100,19,19
slow,cnn,1,cnn,1,v100,1,1
"""
PRICES = """timestamp,cloud,zone,instance_type,gpu_type,price_usd_per_gpu_h
2020-01-01T00:00:00Z,aws,a,p3,v100,1.0
2020-01-01T00:00:00Z,gcp,a,n1,v100,0.5
2020-01-01T00:00:00Z,aws,a,p2,k80,0.2
"""
TRACE = "id,arrival_s,job_type,gpus,steps\na,0,cnn,1,36000\nb,0,cnn,1,36000\n"


@pytest.fixture(autouse=True)
def _files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, text in (("rates", RATES), ("pairs", PAIRS), ("prices", PRICES), ("trace", TRACE)):
        Path(name).write_text(text)


def figure(gavel: Gavel, name: str, *options: str) -> float:
    """Run a simulation and return one of its figures."""
    result = gavel("simulate", *options, "--restart", "0", "--json", "-")
    assert result.exit_code == 0, result.stderr
    return float(json.loads(result.stdout)[name])


def test_one_set_of_measurements_and_its_pairs(gavel: Gavel) -> None:
    """Twice the rates halve the completion time, and packed jobs run at the rates of the pairs' file."""
    common = ("trace", "--cluster", "v100=2", "--throughputs", "rates", "--comparison")
    slow_h, fast_h = (figure(gavel, "mean_jct_h", *common, "--measured", name) for name in ("slow", "fast"))
    assert (slow_h, fast_h) == (pytest.approx(1.0), pytest.approx(0.5))
    packed = ("trace", "--cluster", "v100=1", "--throughputs", "rates", "--measured", "fast", "--comparison")
    alone = figure(gavel, "mean_jct_h", *packed, "--policy", "las+packing")
    together = figure(gavel, "mean_jct_h", *packed, "--policy", "las+packing", "--pairs", "pairs")
    assert together == pytest.approx(36000 / 19 / 3600, rel=0.01)
    assert alone > 1.3 * together


@pytest.mark.parametrize("command", ["simulate", "sweep", "generate", "replay"])
def test_an_ambiguous_file_is_refused_with_its_sets(command: str, gavel: Gavel, wording: Wording) -> None:
    """The error names the option, and the sets of measurements in the file."""
    workload = ("--workload", "mixed-day", "--rate", "9", "--jobs", "2")
    gavel("simulate", *workload, "--cluster", "a100=8", "--journal", "j")
    arguments = {
        "simulate": ("trace", "--cluster", "v100=2"),
        "sweep": ("trace", "--cluster", "v100=2", "--policy", "las"),
        "generate": ("out.csv", "--rate", "1", "--jobs", "1"),
        "replay": ("j",),
    }[command]
    result = gavel(command, *arguments, "--throughputs", "rates")
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert [word in result.stderr for word in ("--measured", "slow", "fast")] == [True] * 3
    wording(result.stderr)


@pytest.mark.parametrize(
    ("options", "place"),
    [
        (("--measured", "fast"), "--measured: "),
        (("--pairs", "pairs"), "--pairs: "),
        (("--throughputs", "rates", "--measured", "fats"), "rates: measured: "),
        (("--throughputs", "own", "--measured", "fast"), "own: measured: "),
        (("--cloud", "aws"), "--cloud: "),
        (("--notice", "60"), "--notice: "),
        (("--prices-file", "prices", "--cloud", "asw"), "prices: cloud: "),
    ],
    ids=as_words,
)
def test_wrong_choices(options: tuple[str, ...], place: str, gavel: Gavel, wording: Wording) -> None:
    """A wrong choice is one line that begins with the option, or with the file and column."""
    Path("own").write_text("job_type,gpus,worker_type,steps_per_s\ncnn,1,v100,10\n")
    workload = ("--workload", "mixed-day", "--rate", "9", "--jobs", "2")
    result = gavel("simulate", *workload, "--cluster", "v100=4,a100=16", *options)
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1), result.stderr
    assert result.stderr.startswith(f"gavel simulate: {place}"), result.stderr
    wording(result.stderr)


def test_spot_prices_with_our_own_table(gavel: Gavel, wording: Wording) -> None:
    """Types in the file get its prices, of one cloud or the lowest; other types keep theirs, and a note names them."""
    trace = "id,arrival_s,job_type,gpus,steps\na,0,resnet50,1,36000\n"
    Path("trace").write_text(trace)
    common = ("trace", "--cluster", "v100=1", "--prices-file", "prices")
    cheapest = figure(gavel, "cost_usd", *common)
    assert figure(gavel, "cost_usd", *common, "--cloud", "aws") == pytest.approx(2 * cheapest)
    result = gavel("simulate", *common[:2], "v100=1,a100=4,h100=4", *common[3:])
    assert result.exit_code == 0
    (note,) = [line for line in result.stderr.splitlines() if line.startswith("note: prices: ")]
    assert ("a100" in note, "h100" in note, "v100" in note) == (True, True, False)
    wording(note)
    refused = gavel("simulate", *common[:2], "a100=4", *common[3:])
    assert (refused.exit_code, refused.stderr.startswith("gavel simulate: prices: gpu_type: ")) == (2, True)
    wording(refused.stderr)


def test_a_subtrace_is_chosen_by_its_option(gavel: Gavel, wording: Wording) -> None:
    """A trace file of several traces is refused with the option that chooses one."""
    head = "subtrace,job_id,arrival_s,num_gpus,job_type,total_steps\n"
    Path("several").write_text(head + "x,1,0,1,resnet50,5\ny,1,0,1,resnet50,5\n")
    result = gavel("simulate", "several", "--cluster", "a100=1")
    assert (result.exit_code, "--subtrace" in result.stderr) == (2, True)
    wording(result.stderr)
