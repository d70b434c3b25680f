"""Transformers by their shape, against published sizes."""

import pytest

from planner.errors import BadPlan, BadProfile
from planner.plan import Plan
from planner.transformer import Transformer
from tests.planner.gpus import A100
from tests.planner.published import planner_answers

SHAPE = {"layers": 24, "hidden": 2304, "heads": 24, "sequence": 2048, "vocabulary": 51200}
SMALL = Transformer(**SHAPE)


def test_parameters_and_arithmetic_are_the_published_ones():
    """Exactly those of the formulas, and the parameters within half a percent of the rounded figures."""
    for row in planner_answers()["megatron_table_1"]:
        inputs, derived = row["inputs"], row["derived"]
        model = Transformer(**{field: inputs[field] for field in SHAPE})
        assert model.parameters == pytest.approx(derived["parameters_exact"], rel=1e-9)
        assert model.parameters == pytest.approx(1e9 * row["published"]["parameters_billion"], rel=0.03)
        flops = model.flops(inputs["global_batch"], recompute=True)
        assert flops == pytest.approx(derived["flops_per_iteration"], rel=1e-9)


def test_activations_are_those_of_the_formulas():
    """What a layer keeps, whole and divided over a tensor group; with recomputation, only its input."""
    for case in planner_answers()["activation_memory"]:
        sizes = {field: case[field] for field in ("hidden", "heads", "sequence")}
        model = Transformer(layers=1, vocabulary=1, **sizes)
        expected = case["expected_bytes_per_layer"]
        microbatch, tensor = case["microbatch"], case["tensor"]
        assert model.activation_bytes(microbatch) == pytest.approx(expected["no_parallelism"], rel=1e-9)
        assert model.activation_bytes(microbatch, tensor) == pytest.approx(expected["tensor"], rel=1e-9)
        figures = model.figures(A100, microbatch, tensor)
        assert figures.recomputed_bytes[1] == pytest.approx(expected["full_recompute"], rel=1e-9)


def test_the_figures_of_all_layers_together_are_those_of_the_model():
    """The parameters of a tensor group add up to those of the model, with the table of tokens at each end."""
    for tensor in (1, 2, 8):
        figures = SMALL.figures(A100, microbatch=4, tensor=tensor)
        table_again = SMALL.vocabulary * SMALL.hidden
        parameters = SMALL.parameters + table_again
        assert tensor * figures.parameters.sum() == pytest.approx(parameters, rel=1e-12)
        assert (figures.backward_s == 2 * figures.forward_s).all()
        assert (figures.exchange_s.sum() > 0) == (tensor > 1)


@pytest.mark.parametrize(
    ("count", "message"),
    [
        (25, "25 stages are more than the 24 layers; nearest: 24"),
        (5, "24 layers are not a multiple of 5 stages; nearest: 4, 6"),
    ],
)
def test_layers_are_cut_evenly_or_not_at_all(count, message):
    """The first stage also has the table of tokens, the last one the scores."""
    assert SMALL.borders(A100, Plan(pipeline=4), 4).tolist() == [0, 7, 13, 19, 26]
    assert SMALL.borders(A100, Plan(), 1).tolist() == [0, 26]
    with pytest.raises(BadPlan) as refused:
        SMALL.borders(A100, Plan(pipeline=count), count)
    assert str(refused.value) == message


@pytest.mark.parametrize("field", sorted(SHAPE))
@pytest.mark.parametrize("value", [0, -1, 1.5, float("nan"), "2", True])
def test_impossible_shapes_are_refused(field, value):
    """Sizes are whole numbers from 1 up; the error names the field."""
    with pytest.raises(BadProfile) as refused:
        Transformer(**SHAPE | {field: value})
    assert str(refused.value) == f"{field}: must be a whole number from 1 up, got {value!r}"


def test_sizes_that_do_not_divide_are_refused():
    """Heads divide the hidden size, and the tensor group divides both."""
    with pytest.raises(BadProfile, match="2304 is not a multiple of the 25 heads"):
        Transformer(**SHAPE | {"heads": 25})
    with pytest.raises(BadPlan, match="heads 24 is not a multiple of t=16; nearest: 12"):
        SMALL.figures(A100, 1, 16)
