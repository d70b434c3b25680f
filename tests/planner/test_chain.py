"""PipeDream's dynamic program, against its own optimizer's answers and against every possible pipeline."""

import math
from itertools import combinations, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.chain import Level, Options, Stage, chain
from planner.errors import BadCluster, NothingFits
from planner.graph import Operator, states_of
from planner.pipedream_graph import read_states
from tests.planner.published import planner_answers

GIGABYTE = 1e9


def line(*figures):
    """The states of a model whose operators, each (time, output, parameters), form a line."""
    operators = [Operator(str(number), *each) for number, each in enumerate(figures)]
    return states_of(operators, [(str(number - 1), str(number)) for number in range(1, len(figures))])


def stage_s(states, stage, machines_after, level, options):
    """The time of one stage by plain sums; infinite if it needs too much memory."""
    compute_s, output, parameters = (
        figure[stage.end - 1] - (figure[stage.first - 1] if stage.first else 0.0)
        for figure in (states.compute_s, states.activation_bytes, states.parameter_bytes)
    )
    exchange_s = 4 * (stage.replicas - 1) / stage.replicas * parameters / level.bytes_per_s
    times = [(compute_s + exchange_s) / stage.replicas]
    if options.count_activation_transfers:
        borders = {stage.first - 1, stage.end - 1} - {-1, len(states) - 1}
        if stage.first:
            times += [2 * states.output_bytes[b] / level.bytes_per_s / stage.replicas for b in borders]
    copies = math.ceil(machines_after / stage.replicas)
    fits = options.memory_bytes is None or copies * (output + parameters) <= options.memory_bytes
    return max(times) if fits else math.inf


def pipeline_s(states, stages, level, options):
    """The time of the slowest stage of a pipeline by plain sums."""
    after = np.cumsum([0] + [stage.replicas for stage in reversed(stages)])[:-1][::-1]
    unused = level.machines - sum(stage.replicas for stage in stages)
    return max(
        stage_s(states, stage, later + unused, level, options)
        for stage, later in zip(stages, after.tolist(), strict=True)
    )


def all_pipelines(states, machines):
    """Every way to cut a line, with every number of replicas."""
    for cuts in range(min(len(states), machines)):
        for ends in combinations(range(1, len(states)), cuts):
            borders = (0, *ends, len(states))
            for replicas in product(range(1, machines + 1), repeat=cuts + 1):
                if sum(replicas) == machines:
                    yield [Stage(a, b, n) for a, b, n in zip(borders, borders[1:], replicas, strict=False)]


@pytest.mark.parametrize("model", ["alexnet", "gnmt", "resnet18", "resnext50", "vgg16"])
def test_times_are_those_of_pipedream(model):
    """All answers of PipeDream's optimizer: levels, straight pipelines, limited memory, unused machines, transfers."""
    answers = planner_answers()["pipedream"][model]
    states = read_states(answers["graph_txt"])
    for case in answers["cases"]:
        answer = chain(states, levels_of(case), options_of(case))
        for field in ("bottleneck_stage_s", "data_parallel_s", "single_gpu_s"):
            assert getattr(answer, field) == pytest.approx(case["expected"][field], rel=1e-9), case


def levels_of(case):
    """The levels of a published case."""
    return [Level(*each) for each in zip(case["gpus_per_level"], case["bandwidth_bytes_per_s"], strict=True)]


def options_of(case):
    """The options of a published case."""
    return Options(
        case["straight"], case["memory_bytes"], case["use_fewer"], case["count_activation_transfers"]
    )


@pytest.mark.parametrize("model", ["alexnet", "gnmt", "resnet18", "resnext50", "vgg16"])
def test_the_stages_have_the_time_that_is_promised(model):
    """On one level, the stages of each answer, priced by plain sums, take the time that the answer states."""
    answers = planner_answers()["pipedream"][model]
    states = read_states(answers["graph_txt"])
    for case in answers["cases"]:
        level, *others = levels_of(case)
        if not others:
            answer = chain(states, [level], options_of(case))
            priced_s = pipeline_s(states, answer.levels[0], level, options_of(case))
            assert priced_s == pytest.approx(answer.bottleneck_stage_s, rel=1e-9), case


FIGURES = st.floats(0.0, 10.0, allow_subnormal=False)


@given(
    model=st.lists(st.tuples(FIGURES, FIGURES, FIGURES), min_size=1, max_size=6),
    machines=st.integers(1, 4),
    bandwidth=st.sampled_from([0.5, 2.0, 50.0]),
    memory=st.sampled_from([None, 30.0, 60.0]),
    transfers=st.booleans(),
)
def test_no_pipeline_is_faster(model, machines, bandwidth, memory, transfers):
    """On small lines, the answer is the fastest of all pipelines; if none fits into memory, that is an error."""
    states, level = line(*model), Level(machines, bandwidth)
    options = Options(memory_bytes=memory, count_activation_transfers=transfers)
    fastest_s = min(pipeline_s(states, each, level, options) for each in all_pipelines(states, machines))
    if math.isfinite(fastest_s):
        assert chain(states, [level], options).bottleneck_stage_s == pytest.approx(fastest_s, rel=1e-9)
    else:
        with pytest.raises(NothingFits):
            chain(states, [level], options)


def test_more_freedom_is_never_slower():
    """Unused machines, replicas and fast links can only help."""
    states = line((4, 1e9, 2e9), (1, 1e9, 0), (2, 1e9, 1e9), (3, 0, 4e9))
    slow, fast = Level(4, GIGABYTE), Level(4, 10 * GIGABYTE)
    free_s = chain(states, [slow], Options()).bottleneck_stage_s
    assert chain(states, [slow], Options(use_fewer=True)).bottleneck_stage_s <= free_s
    assert chain(states, [slow], Options(straight=True)).bottleneck_stage_s >= free_s
    assert chain(states, [fast], Options()).bottleneck_stage_s <= free_s


def test_levels_cut_the_stages_above():
    """The stages of nodes come first. Each is then cut into stages of GPUs, to which operators belong."""
    states = line(*[(1.0, 1.0, 1e9)] * 8)
    answer = chain(states, [Level(2, 100 * GIGABYTE), Level(2, GIGABYTE)], Options())
    assert answer.levels == (
        (Stage(0, 4, 1), Stage(4, 8, 1)),
        (Stage(0, 2, 1), Stage(2, 4, 1), Stage(4, 6, 1), Stage(6, 8, 1)),
    )
    assert answer.stage_of == {str(number): number // 2 for number in range(8)}
    assert answer.single_gpu_s == 8


def test_unused_machines_are_left_out():
    """A model of one operator with large parameters runs on one of four machines."""
    answer = chain(line((1.0, 0, 100 * GIGABYTE)), [Level(4, GIGABYTE)], Options(use_fewer=True))
    assert (answer.bottleneck_stage_s, answer.levels) == (1.0, ((Stage(0, 1, 1),),))


@pytest.mark.parametrize("level", [(0, 1.0), (-1, 1.0), (1, 0.0), (1, -1.0), (1, math.nan), (1, math.inf)])
def test_impossible_levels_are_refused(level):
    """A level has machines, and links of a finite bandwidth above 0."""
    with pytest.raises(BadCluster, match=r"^level: must have"):
        Level(*level)


def test_no_levels_are_refused():
    """Without a level there is no GPU."""
    with pytest.raises(BadCluster, match="at least one level"):
        chain(line((1.0, 0, 0)), [], Options())
