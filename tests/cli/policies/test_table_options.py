"""Options that choose within files of others: whose measurements, which pairs, which cloud's prices."""

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Gavel

RATES = """source,job_type,scale_factor,gpu_type,throughput_steps_per_s
mine,cnn,1,v100,10
yours,cnn,1,v100,20
"""
PAIRS = """source,job_type_a,scale_a,job_type_b,scale_b,gpu_type,throughput_a,throughput_b
yours,cnn,1,cnn,1,v100,19,19
mine,cnn,1,cnn,1,v100,1,1
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
    """One of the figures."""
    result = gavel("simulate", *options, "--restart", "0", "--json", "-")
    assert result.exit_code == 0, result.stderr
    return float(json.loads(result.stdout)[name])


def test_whose_measurements_and_their_pairs(gavel: Gavel) -> None:
    """Twice as fast, twice as soon done; packed at the rates of the pairs' file."""
    common = ("trace", "--cluster", "v100=2", "--throughputs", "rates", "--comparison")
    mine, yours = (figure(gavel, "mean_jct_h", *common, "--measured", name) for name in ("mine", "yours"))
    assert (mine, yours) == (pytest.approx(1.0), pytest.approx(0.5))
    packed = ("trace", "--cluster", "v100=1", "--throughputs", "rates", "--measured", "yours", "--comparison")
    alone = figure(gavel, "mean_jct_h", *packed, "--policy", "las+packing")
    together = figure(gavel, "mean_jct_h", *packed, "--policy", "las+packing", "--pairs", "pairs")
    assert together == pytest.approx(36000 / 19 / 3600, rel=0.01)
    assert alone > 1.3 * together


@pytest.mark.parametrize("command", ["simulate", "sweep", "generate", "replay"])
def test_the_error_says_how_to_choose(command: str, gavel: Gavel) -> None:
    """The option, and what there is."""
    gavel(
        "simulate",
        "--workload",
        "mixed-day",
        "--rate",
        "9",
        "--jobs",
        "2",
        "--cluster",
        "a100=8",
        "--journal",
        "j",
    )
    arguments = {
        "simulate": ("trace", "--cluster", "v100=2"),
        "sweep": ("trace", "--cluster", "v100=2", "--policy", "las"),
        "generate": ("out.csv", "--rate", "1", "--jobs", "1"),
        "replay": ("j",),
    }[command]
    result = gavel(command, *arguments, "--throughputs", "rates")
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert "several sets of measurements; choose one by --measured NAME: mine, yours" in result.stderr


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (("--measured", "mine"), "--measured: belongs to --throughputs, which is missing"),
        (("--pairs", "pairs"), "--pairs: belongs to --throughputs, which is missing"),
        (
            ("--throughputs", "rates", "--measured", "mien"),
            "rates: measured: 'mien' is not in the file; did you mean",
        ),
        (("--throughputs", "own", "--measured", "mine"), "own: measured: the file has no column `source`"),
        (("--cloud", "aws"), "--cloud: belongs to --prices-file, which is missing"),
        (("--notice", "60"), "--notice: belongs to --capacity-file, which is missing"),
        (
            ("--prices-file", "prices", "--cloud", "asw"),
            "prices: cloud: has no lines about 'asw'; did you mean 'aws'?",
        ),
    ],
)
def test_choices_that_cannot_be(options: tuple[str, ...], line: str, gavel: Gavel) -> None:
    """One line, with the option or the file."""
    Path("own").write_text("job_type,gpus,worker_type,steps_per_s\ncnn,1,v100,10\n")
    workload = ("--workload", "mixed-day", "--rate", "9", "--jobs", "2")
    result = gavel("simulate", *workload, "--cluster", "v100=4,a100=16", *options)
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1), result.stderr
    assert result.stderr.startswith(f"gavel simulate: {line}"), result.stderr


def test_spot_prices_with_our_own_table(gavel: Gavel) -> None:
    """Those of the types that are there; the others keep theirs, and are named; of one cloud, or the cheapest."""
    trace = "id,arrival_s,job_type,gpus,steps\na,0,resnet50,1,36000\n"
    Path("trace").write_text(trace)
    common = ("trace", "--cluster", "v100=1", "--prices-file", "prices")
    cheapest = figure(gavel, "cost_usd", *common)
    assert figure(gavel, "cost_usd", *common, "--cloud", "aws") == pytest.approx(2 * cheapest)
    result = gavel("simulate", *common[:2], "v100=1,a100=4,h100=4", *common[3:])
    assert result.exit_code == 0
    assert "note: prices: has no price of a100, h100, which keep theirs\n" in result.stderr
    refused = gavel("simulate", *common[:2], "a100=4", *common[3:])
    assert refused.stderr.startswith(
        "gavel simulate: prices: gpu_type: has no lines about a100; it is about k80, v100"
    )


def test_a_subtrace_is_chosen_by_its_option(gavel: Gavel) -> None:
    """The refusal names it."""
    head = "subtrace,job_id,arrival_s,num_gpus,job_type,total_steps\n"
    Path("several").write_text(head + "x,1,0,1,resnet50,5\ny,1,0,1,resnet50,5\n")
    result = gavel("simulate", "several", "--cluster", "a100=1")
    assert "choose one by --subtrace NAME, or all of them by the name '*'" in result.stderr
