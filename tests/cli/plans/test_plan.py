"""`gavel plan`: the best plans of a transformer and of a profile, and the best pipeline of a graph."""

import json
from pathlib import Path

import pytest

from gavel.training.parallel.plan import plan_of
from tests.cli.conftest import Gavel
from tests.planner.profiles import random_document
from tests.planner.published import planner_answers
from tests.planner.test_pipedream_graph import line
from tests.support.wording import Wording

GPT = ("plan", "--gpt", "layers=24,hidden=2304,heads=24,seq=2048,vocab=51200", "--batch", "512")
GRAPH = "\n".join([line("a", forward="30", backward="60"), line("b"), line("c"), "\ta -- b", "\tb -- c"])


def test_options_that_are_repeated_add_up(gavel: Gavel) -> None:
    """Types, memory and numbers of GPUs may be named one by one; none of them is lost."""
    together = gavel(
        *GPT, "--cluster", "v100=16,a100=16", "--gpu-memory", "v100=40,a100=20", "--gpus", "8,16", "--json"
    )
    apart = gavel(
        *GPT,
        *("--cluster", "v100=16", "--cluster", "a100=16"),
        *("--gpu-memory", "v100=40", "--gpu-memory", "a100=20"),
        *("--gpus", "8", "--gpus", "16", "--json"),
    )
    assert json.loads(apart.stdout)["plans"] == json.loads(together.stdout)["plans"]


def test_each_number_of_gpus_has_its_fastest_plan(gavel: Gavel) -> None:
    """A row per worker type and number of GPUs, as a table and as JSON; more GPUs are faster."""
    plans = json.loads(gavel(*GPT, "--cluster", "a100=16,v100=16", "--json").stdout)["plans"]
    rows = [(plan["worker_type"], plan["gpus"]) for plan in plans]
    assert rows[:5] == [("a100", gpus) for gpus in (1, 2, 4, 8, 16)]
    assert all(plan["tensor"] * plan["pipeline"] * plan["data"] == plan["gpus"] for plan in plans)
    a100_s = [plan["step_s"] for plan in plans if plan["worker_type"] == "a100"]
    assert a100_s == sorted(a100_s, reverse=True)
    parts = ("compute_s", "bubble_s", "tensor_s", "pipeline_s", "data_s")
    assert all(sum(plan[part] for part in parts) == pytest.approx(plan["step_s"]) for plan in plans)
    table = gavel(*GPT, "--cluster", "a100=16,v100=16").stdout
    assert all(plan["label"] in table for plan in plans)


def test_a_type_that_is_too_small_is_noted(gavel: Gavel) -> None:
    """Where too few GPUs hold the model, a note below the table says how much memory is missing."""
    large = ("plan", "--gpt", "layers=48,hidden=8192,heads=64,seq=2048,vocab=51200", "--batch", "512")
    table = gavel(*large, "--cluster", "a100=64").stdout
    assert "note: does not fit on 8 × a100: stage " in table


def test_a_plan_is_explained(gavel: Gavel, wording: Wording) -> None:
    """Stages with their layers and memory, a timeline, what limits the step, and what is not verified."""
    arguments = (*GPT, "--cluster", "v100=16,a100=8", "--explain", "16")
    answer = gavel(*arguments)
    assert answer.exit_code == 0
    wording(answer.stdout)
    (plan,) = json.loads(gavel(*arguments, "--json").stdout)["plans"]
    assert (plan["worker_type"], len(plan["stages"]), len(plan["timeline"])) == (
        "v100",
        plan["pipeline"],
        plan["pipeline"],
    )
    assert [stage["memory_bytes"] for stage in plan["stages"]] == plan["memory_bytes_by_stage"]
    assert set(plan["limits"]) == {"memory", "network", "bubble"}
    ends = [row[-1]["end_s"] for row in plan["timeline"]]
    assert max(ends) == pytest.approx(plan["step_s"] - plan["data_s"], rel=0.01)


@pytest.mark.parametrize("suffix", ["svg", "png"])
def test_an_explanation_is_drawn(gavel: Gavel, tmp_path: Path, suffix: str) -> None:
    """The picture has memory and timeline of every plan."""
    file = tmp_path / f"plans.{suffix}"
    answer = gavel(*GPT, "--cluster", "v100=16,a100=16", "--explain", "16", "--plot", str(file))
    assert answer.exit_code == 0
    assert file.read_bytes().startswith(b"<?xml" if suffix == "svg" else b"\x89PNG")


def test_other_plans_have_their_reasons(gavel: Gavel, wording: Wording) -> None:
    """By worker type, the rule or limit that a plan breaks, or how much slower it is."""
    arguments = (*GPT, "--cluster", "v100=16,a100=16,t4=8", "--why-not", "t1-p2-d8")
    wording(gavel(*arguments).stdout)
    slow, large = json.loads(gavel(*arguments, "--json").stdout)["why_not"][::-1]
    assert (slow["worker_type"], slow["step_s"] > 0) == ("a100", True)
    assert (large["worker_type"], large["step_s"], large["label"]) == ("v100", None, None)


def test_tables_note_what_limits_plans_and_what_is_not_verified(gavel: Gavel, wording: Wording) -> None:
    """For the widest plan of each type; types without published runs are named."""
    answer = json.loads(gavel(*GPT, "--cluster", "v100=16,a100=16", "--json").stdout)
    wording("\n".join(answer["notes"]))


def test_older_weights_are_used_only_on_request(gavel: Gavel) -> None:
    """2BW and stashing change the training, so a plan has them only if the user names them."""
    arguments = (*GPT, "--cluster", "v100=16", "--gpus", "16", "--network", "0.5", "--json")
    default, double = (
        json.loads(gavel(*arguments, *more).stdout)["plans"][0] for more in ((), ("--schedule", "2bw"))
    )
    assert default["schedule"] in ("1f1b", "interleaved")
    assert (double["schedule"], double["bubble_s"]) == ("2bw", 0.0)


def test_plans_that_divide_no_layer_on_request(gavel: Gavel) -> None:
    """Without tensor groups, a model that is too large for a GPU is cut in depth."""
    large = ("plan", "--gpt", "layers=48,hidden=4096,heads=32,seq=2048,vocab=51200", "--batch", "512")
    arguments = (*large, "--cluster", "a100=64", "--gpus", "64", "--json")
    free, limited = (
        json.loads(gavel(*arguments, *more).stdout)["plans"][0] for more in ((), ("--max-tensor", "1"))
    )
    assert free["tensor"] > 1 == limited["tensor"] < limited["pipeline"]


def test_gpus_have_the_memory_that_is_given(gavel: Gavel, wording: Wording) -> None:
    """It replaces the figure of a type: a V100 of 32 GB needs no second one; of one type that is too small, why."""
    cluster = ("--cluster", "v100=2,a100=2")
    plans = json.loads(gavel(*GPT, *cluster, "--gpu-memory", "v100=40", "--json").stdout)["plans"]
    assert [(plan["worker_type"], plan["gpus"]) for plan in plans] == [
        *(("v100", 1), ("v100", 2)),
        *(("a100", 1), ("a100", 2)),
    ]
    assert max(plan["memory_bytes"] for plan in plans[:2]) > 16e9
    wording(gavel(*GPT, *cluster, "--gpu-memory", "v100=0.04").stdout)


def test_plans_are_columns_of_a_problem(gavel: Gavel, tmp_path: Path) -> None:
    """The printed job, appended to a problem file, is allocated one of its plans."""
    problem = tmp_path / "problem.yaml"
    types = "worker_types: {a100: {gpus: 16}, v100: {gpus: 32}}\njobs:\n"
    job = gavel(*GPT, "--cluster", "a100=16,v100=32", "--columns").stdout
    problem.write_text(types + job)
    answer = json.loads(gavel("allocate", str(problem), "--json").stdout)
    assert job.startswith("  - id: gpt-1.65b\n    variants:\n")
    assert json.dumps(answer).count("gpt-1.65b") >= 1
    table = gavel("allocate", str(problem)).stdout
    assert "d16" in table


def test_one_plan_is_evaluated(gavel: Gavel) -> None:
    """The figures of exactly this plan, which recomputes because it must; both separators are read."""
    for label in ("t1-p1-d32-b16", "d32·b16"):
        answer = gavel(*GPT, "--cluster", "a100=32", "--evaluate", label, "--json")
        (plan,) = json.loads(answer.stdout)["plans"]
        assert (plan["label"], plan["recompute"], plan["fits"]) == ("t1·p1·d32·b16·r", True, True)
        assert plan["tflops_per_gpu"] == pytest.approx(137, rel=0.05)


def test_the_pipeline_of_a_graph_is_pipedreams(gavel: Gavel, tmp_path: Path) -> None:
    """One published case with two levels, through the command."""
    answers = planner_answers()["pipedream"]["alexnet"]
    case = next(case for case in answers["cases"] if case["gpus_per_level"] == [4, 2])
    (tmp_path / "graph.txt").write_text(answers["graph_txt"], encoding="utf-8")
    levels = [
        part
        for gpus, speed in zip(case["gpus_per_level"], case["bandwidth_bytes_per_s"], strict=True)
        for part in ("--level", f"{gpus}:{speed}")
    ]
    answer = gavel(
        "plan", str(tmp_path / "graph.txt"), "--as", "pipedream", *levels, "--activation-transfers", "--json"
    )
    pipeline = json.loads(answer.stdout)
    for field in ("bottleneck_stage_s", "data_parallel_s", "single_gpu_s"):
        assert pipeline[field] == pytest.approx(case["expected"][field], rel=1e-6)
    assert [level["level"] for level in pipeline["levels"]] == [2, 1]
    assert set(pipeline["stage_of_node"]) == set(
        case["expected"]["stage_of_node"] or pipeline["stage_of_node"]
    )


def test_the_stages_of_a_graph_are_listed(gavel: Gavel, tmp_path: Path) -> None:
    """Levels, stages with their states and replicas, and how much faster the pipeline is."""
    (tmp_path / "graph.txt").write_text(GRAPH)
    table = gavel("plan", str(tmp_path / "graph.txt"), "--as", "pipedream", "--level", "4:1e9").stdout
    assert "0 to 2" in table
    assert "4.00 times as fast as one GPU, 1.00 times as fast as data parallelism" in table


@pytest.mark.parametrize(
    "arguments",
    [
        ["plan"],
        ["plan", "graph.txt", *GPT[1:]],
        ["plan", "graph.txt"],
        ["plan", "graph.txt", "--as", "pipedream"],
        ["plan", "graph.txt", "--as", "pipedream", "--level", "4:1e9", "--batch", "8"],
        ["plan", "absent.txt", "--as", "pipedream", "--level", "4:1e9"],
        ["plan", "binary.txt", "--as", "pipedream", "--level", "4:1e9"],
        ["plan", "graph.txt", "--as", "pipedream", "--level", "0:1e9"],
        ["plan", "graph.txt", "--as", "pipedream", "--level", "4:0"],
        ["plan", "graph.txt", "--as", "pipedream", "--level", "4"],
        ["plan", "graph.txt", "--as", "pipedream", "--level", "4:1e9", "--straight"],
        ["plan", "graph.txt", "--as", "pipedream", "--level", "2:1e9", "--straight", "--memory", "1"],
        ["plan", "graph.txt", "--as", "pipedream", "--level", "4:1e9", "--memory", "nan"],
        [*GPT[:3]],
        [*GPT],
        [*GPT, "--cluster", "a100=0"],
        [*GPT, "--cluster", "a1000=8"],
        [*GPT, "--cluster", "a100=8", "--cluster", "a100=16"],
        [*GPT, "--cluster", "a100=8", "--straight"],
        [*GPT, "--cluster", "a100=8", "--gpus", "16"],
        [*GPT, "--cluster", "a100=8", "--gpus", "7"],
        [*GPT, "--cluster", "a100=8", "--network", "0"],
        [*GPT, "--cluster", "a100=8", "--columns", "--json"],
        ["plan", "graph.txt", "--as", "pipedream", "--level", "4:1e9", "--columns"],
        [*GPT, "--cluster", "a100=8", "--evaluate", "x1"],
        [*GPT, "--cluster", "a100=8", "--evaluate", "t3"],
        [*GPT, "--cluster", "a100=8", "--evaluate", "d5"],
        [*GPT[:-1], "100", "--cluster", "a100=16", "--evaluate", "d16-b1"],
        [*GPT, "--cluster", "a100=16", "--gpus-per-node", "16", "--evaluate", "t16"],
        [*GPT, "--cluster", "a100=48", "--evaluate", "p48"],
        [*GPT, "--cluster", "a100=8", "--evaluate", "p8-v2"],
        [*GPT, "--cluster", "a100=8", "--evaluate", "p6-v3-b128"],
        [*GPT, "--cluster", "a100=8", "--evaluate", "p8-b128-2bw"],
        [*GPT, "--cluster", "a100=8", "--schedule", "interleaved", "--gpus", "1"],
        [*GPT, "--cluster", "a100=8", "--schedule", "zero-bubble"],
        [*GPT, "--cluster", "a100=8", "--explain", "16"],
        [*GPT, "--cluster", "a100=8", "--explain", "0"],
        [*GPT, "--cluster", "a100=8", "--explain", "7"],
        [*GPT, "--cluster", "a100=8", "--explain", "8", "--columns"],
        [*GPT, "--cluster", "a100=8", "--explain", "8", "--evaluate", "d8"],
        [*GPT, "--cluster", "a100=8", "--explain", "8", "--why-not", "d8"],
        [*GPT, "--cluster", "a100=8", "--explain", "8", "--plot", "x.pdf"],
        [*GPT, "--cluster", "a100=8", "--explain", "8", "--plot", "absent/x.svg"],
        [*GPT, "--cluster", "a100=8", "--plot", "x.svg"],
        [*GPT, "--cluster", "a100=8", "--why-not", "fast"],
        [*GPT, "--cluster", "a100=8", "--why-not", "d16"],
        [*GPT, "--cluster", "a100=8", "--why-not", "d8", "--gpus", "8"],
        ["plan", "graph.txt", "--as", "pipedream", "--level", "4:1e9", "--explain", "4"],
        [*GPT, "--cluster", "t4=1"],
        ["plan", "cycle.txt", "--as", "pipedream", "--level", "4:1e9"],
        ["plan", "wide.txt", "--as", "pipedream", "--level", "4:1e9"],
        ["plan", "nan.txt", "--as", "pipedream", "--level", "4:1e9"],
        ["plan", "graph.txt", "--as", "pipedream", "--level", "4:1e9", "--memory", "0"],
        ["plan", "graph.txt", "--as", "pipedream", "--level", "4:1e9", "--schedule", "2bw"],
        ["plan", "--gpt", "layers=24", "--batch", "8", "--cluster", "a100=8"],
        ["plan", "--gpt", "layers=24,layers=25", "--batch", "8", "--cluster", "a100=8"],
        ["plan", "--gpt", "layers=1,hidden=8,heads=3,seq=1,vocab=1", "--batch", "8", "--cluster", "a100=8"],
        ["plan", "--gpt", "layers=x,hidden=8,heads=3,seq=1,vocab=1", "--batch", "8", "--cluster", "a100=8"],
        [
            "plan",
            "--gpt",
            "layers=99,hidden=65536,heads=8,seq=8,vocab=8",
            "--batch",
            "8",
            "--cluster",
            "t4=8",
        ],
        [*GPT, "--cluster", "a100=8", "--gpu-memory", "v100=32"],
        [*GPT, "--cluster", "a100=8", "--gpu-memory", "a100=0"],
        [*GPT, "--cluster", "a100=8", "--gpu-memory", "40"],
        ["plan", "graph.txt", "--as", "pipedream", "--level", "4:1e9", "--gpu-memory", "a100=40"],
        [*GPT, "--cluster", "a100=16", "--evaluate", "t16"],
        [
            "plan",
            "--gpt",
            "layers=2,hidden=20,heads=2,seq=8,vocab=8",
            "--batch",
            "8",
            "--cluster",
            "a100=8",
            "--evaluate",
            "t8",
        ],
        [*GPT, "--cluster", "a100=8", "--evaluate", "v2"],
        [*GPT, "--cluster", "a100=8", "--evaluate", "p2-v2-gpipe"],
    ],
)
def test_wrong_input_is_one_line(
    gavel: Gavel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wording: Wording, arguments: list[str]
) -> None:
    """Exit code 2, nothing on standard output, and what to do."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "graph.txt").write_text(GRAPH)
    (tmp_path / "binary.txt").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "cycle.txt").write_text("\n".join([GRAPH, "\tc -- b"]))
    (tmp_path / "nan.txt").write_text(line("a", forward="nan"))
    branches = [f"b{number}" for number in range(20)]
    wide = [line("a"), *map(line, branches), *(f"\ta -- {name}" for name in branches)]
    (tmp_path / "wide.txt").write_text("\n".join(wide))
    answer = gavel(*arguments)
    assert (answer.exit_code, answer.stdout) == (2, "")
    wording(answer.stderr)


# ------------------------------------------------------------------------------------------------------- profiles


@pytest.fixture
def profile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A profile of unequal layers, measured on A100s, in the current directory."""
    monkeypatch.chdir(tmp_path)
    Path("model.profile.json").write_text(json.dumps(random_document(1, 24)))
    return "model.profile.json"


def test_plans_of_a_profile_are_plan_files(gavel: Gavel, profile: str) -> None:
    """A plan per type and number of GPUs; each has the stages and layers that the runtime reads."""
    answer = gavel("plan", profile, "--batch", "64", "--cluster", "a100=16,v100=4", "--json")
    plans = json.loads(answer.stdout)["plans"]
    assert [(plan["worker_type"], plan["gpus"]) for plan in plans] == [
        *(("a100", gpus) for gpus in (1, 2, 4, 8, 16)),
        *(("v100", gpus) for gpus in (1, 2, 4)),
    ]
    names = [f"h.{index}" for index in range(24)]
    for plan in plans:
        assert plan["estimated"] == (plan["worker_type"] == "v100")
        runnable = plan_of(plan)
        assert runnable.world == plan["gpus"]
        stages = runnable.layers_of_stages(names)
        assert [len(stage) for stage in stages] == plan["stages"]
        runnable.schedule_for(64)
    steps = [plan["step_s"] for plan in plans if plan["worker_type"] == "a100"]
    assert steps == sorted(steps, reverse=True)


def test_the_table_of_a_profile_notes_estimates(gavel: Gavel, profile: str) -> None:
    """Samples per second, and which times were not measured."""
    table = gavel("plan", profile, "--batch", "64", "--cluster", "v100=2").stdout
    assert "samples/s" in table
    assert "note: times on v100 are estimated from those on a100" in table
    explained = gavel("plan", profile, "--batch", "64", "--cluster", "v100=2", "--explain", "2").stdout
    assert "note: times on v100 are estimated from those on a100" in explained


def test_plans_of_a_profile_are_columns(gavel: Gavel, profile: str) -> None:
    """The job has the name of the model."""
    job = gavel("plan", profile, "--batch", "64", "--cluster", "a100=8", "--columns").stdout
    assert job.startswith("  - id: small\n    variants:\n      - {worker_type: a100, gpus: ")


def test_other_schedules_and_one_plan(gavel: Gavel, profile: str) -> None:
    """--schedule and --evaluate take profiles as they take shapes."""
    common = ("plan", profile, "--batch", "64", "--cluster", "a100=4", "--json")
    for schedule in ("2bw", "stash", "gpipe"):
        plans = json.loads(gavel(*common, "--schedule", schedule).stdout)["plans"]
        assert {plan["schedule"] for plan in plans} == {schedule}
    (plan,) = json.loads(gavel(*common, "--evaluate", "p4-b2").stdout)["plans"]
    assert (plan["label"], len(plan["stages"])) == ("t1·p4·d1·b2", 4)


def _with_time(text: str) -> str:
    """Return a profile of 5 layers, with this text in place of the time forward of the fourth."""
    content = random_document(1, 5)
    content["layers"][3]["ms"]["a100"]["1"][0] = "TIME"
    return json.dumps(content).replace('"TIME"', text)


@pytest.mark.parametrize(
    ("content", "arguments"),
    [
        ("", ["--batch", "64", "--cluster", "a100=4"]),
        ("[" * 100_000, ["--batch", "64", "--cluster", "a100=4"]),
        ('{"format": "gavel-profile/1", "layers": [{"name": "a", "parameters": NaN}]}', ["--batch", "8"]),
        ('{"format": "gavel-profile/1", "layers": []}', ["--batch", "8", "--cluster", "a100=4"]),
        (None, ["--batch", "64"]),
        (None, ["--cluster", "a100=4"]),
        (None, ["--batch", "64", "--cluster", "a101=4"]),
        (None, ["--batch", "64", "--cluster", "cpu=4"]),
        (None, ["--batch", "64", "--cluster", "a100=4", "--straight"]),
        (None, ["--batch", "64", "--cluster", "a100=4", "--evaluate", "t2"]),
        (None, ["--batch", "64", "--cluster", "a100=32", "--evaluate", "p32"]),
        (None, ["--batch", "7", "--cluster", "a100=64", "--gpus", "64"]),
        (None, ["--batch", "64", "--cluster", "a100=4", "--gpt", "layers=1,hidden=8,heads=1,seq=1,vocab=1"]),
        (_with_time("NaN"), ["--batch", "64", "--cluster", "a100=4"]),
        (_with_time("-1"), ["--batch", "64", "--cluster", "a100=4"]),
        (_with_time("Infinity"), ["--batch", "64", "--cluster", "a100=4"]),
        (_with_time("null"), ["--batch", "64", "--cluster", "a100=4"]),
        (_with_time("1").replace('"flops"', '"flop"'), ["--batch", "64", "--cluster", "a100=4"]),
    ],
)
def test_wrong_profiles_are_one_line(
    gavel: Gavel, profile: str, wording: Wording, content: str | None, arguments: list[str]
) -> None:
    """Exit code 2, nothing on standard output, and what to do."""
    if content is not None:
        Path(profile).write_text(content)
    answer = gavel("plan", profile, *arguments)
    assert (answer.exit_code, answer.stdout) == (2, "")
    wording(answer.stderr)


def test_a_model_that_fits_nowhere_names_the_number_that_would_do(
    gavel: Gavel, profile: str, wording: Wording
) -> None:
    """Too large for the type: the leanest cut, and how many GPUs would do."""
    document = random_document(1, 24)
    for layer in document["layers"]:
        layer["parameters"] = 2e9
    Path(profile).write_text(json.dumps(document))
    answer = gavel("plan", profile, "--batch", "64", "--cluster", "a100=4")
    assert answer.exit_code == 2
    wording(answer.stderr)
