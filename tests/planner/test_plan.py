"""Plans: their labels, and which batches they divide."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.errors import BadPlan
from planner.plan import Plan, read_plan

SIZES = st.integers(1, 10**6)


@given(
    sizes=st.tuples(SIZES, SIZES, SIZES, SIZES),
    chunks=st.integers(1, 100),
    recompute=st.booleans(),
    schedule=st.sampled_from(["1f1b", "gpipe", "2bw", "stash"]),
    dash=st.sampled_from("·-"),
)
def test_a_label_names_its_plan(sizes, chunks, recompute, schedule, dash):
    """What the label states is read again as the same plan, with either separator."""
    plan = Plan(*sizes, chunks, recompute, "interleaved" if schedule == "1f1b" and chunks > 1 else schedule)
    assert read_plan(plan.label.replace("·", dash)) == plan


def test_missing_parts_are_one():
    """Parts may be in any order; several chunks mean the interleaved schedule."""
    assert read_plan("d4-t2") == Plan(tensor=2, data=4)
    assert read_plan("p8·v2") == Plan(pipeline=8, chunks=2, schedule="interleaved")


@pytest.mark.parametrize(
    "label", ["", "t", "t0", "x8", "t8-t8", "r-r", "t8 p8", "t-1", "t9999999999", "gpipe-2bw"]
)
def test_other_labels_are_refused(label):
    """Unknown letters, sizes of 0, parts that are given twice."""
    with pytest.raises(BadPlan, match="is not the label of a plan; write parts such as"):
        read_plan(label)


def test_a_batch_is_divided_over_replicas_and_microbatches():
    """The count of microbatches a replica takes; a batch with a rest is refused with the nearest sizes."""
    plan = Plan(data=16, microbatch=2)
    assert plan.microbatches(96) == 3
    with pytest.raises(BadPlan, match="100 is not a multiple of 16·2; nearest: 96, 128"):
        plan.microbatches(100)
    with pytest.raises(BadPlan, match=r"nearest: 32$"):
        plan.microbatches(20)
