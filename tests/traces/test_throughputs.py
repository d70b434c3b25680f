"""What a throughput table promises."""

import dataclasses
import json
import math

import pytest

from tests.traces.tables import published, small
from traces.errors import BadTable, TraceError
from traces.throughputs import Throughputs, load_throughputs


def test_rates_are_looked_up_and_zero_when_unknown():
    """0 says that it does not fit or that nobody knows; one GPU is never spread."""
    table = small()
    assert table.rate("lm", 2, "v100") == 7.0
    assert table.rate("lm", 2, "v100", consolidated=False) == 5.0
    assert table.rate("lm", 1, "v100", consolidated=False) == 4.0
    assert table.rate("big", 1, "k80") == table.rate("lm", 64, "v100") == table.rate("?", 1, "tpu") == 0.0


def test_pairs_stand_in_both_orders():
    """Whoever is named first, the rates come in that order."""
    table = small()
    assert table.pair_rates("v100", ("lm", 1), ("big", 1)) == (3.0, 1.5)
    assert table.pair_rates("v100", ("big", 1), ("lm", 1)) == (1.5, 3.0)
    assert table.pair_rates("k80", ("big", 1), ("lm", 1)) == (0.0, 0.0)


def test_types_and_widths_are_listed():
    """In the order of the table; widths only where something runs."""
    table = small()
    assert table.worker_types == ("v100", "k80")
    assert table.job_types == ("lm", "big")
    assert (table.widths("lm"), table.widths("big"), table.widths("?")) == ((1, 2), (1,), ())


def test_durations_refer_to_v100_or_to_where_it_fits():
    """The reference type first, then the first type on which the job runs at all."""
    assert small().reference_rate("lm", 1) == 4.0
    assert small().restrict(["k80"]).reference_rate("lm", 1) == 1.0
    assert small().restrict(["k80"]).reference_rate("big", 1) == 0.0


def test_restricting_keeps_only_these_types():
    """Rates, pairs and prices of the others are gone; an unknown type is refused by name."""
    table = small().restrict(["k80"])
    assert table.worker_types == ("k80",)
    assert dict(table.pairs) == {}
    assert dict(table.prices_per_gpu_hour) == {"k80": 0.135}
    with pytest.raises(BadTable, match="did you mean 'k80'"):
        small().restrict(["k8"])


def test_a_table_does_not_change():
    """Neither its fields nor its figures can be set."""
    with pytest.raises(dataclasses.FrozenInstanceError):
        small().source = "other"
    with pytest.raises(TypeError):
        small().solo["lm", 1, "v100"] = 9.0


@pytest.mark.parametrize("rate", [math.nan, math.inf, -1.0])
def test_figures_that_cannot_be_measured_are_refused(rate):
    """Alone, spread, in a pair, as a price: never NaN, infinite or negative."""
    for wrong in (
        {"solo": {("lm", 1, "v100"): rate}},
        {"solo": {}, "unconsolidated": {("lm", 2, "v100"): rate}},
        {"solo": {}, "pairs": {("v100", "lm", 1, "lm", 1): (1.0, rate)}},
        {"solo": {}, "prices_per_gpu_hour": {"v100": rate}},
    ):
        with pytest.raises(BadTable, match=r"lm|v100"):
            Throughputs(**wrong)


def test_pairs_that_contradict_each_other_are_refused():
    """The same pair, stated both ways with other figures, has no truth in it."""
    pairs = {("v100", "a", 1, "b", 1): (1.0, 2.0), ("v100", "b", 1, "a", 1): (2.0, 1.5)}
    with pytest.raises(BadTable, match="state each pair once"):
        Throughputs(solo={("a", 1, "v100"): 3.0}, pairs=pairs)


def test_the_published_table_is_read_whole():
    """All 83 rows of three types, spread rates, pairs both ways, and the prices its figures go by."""
    table = published()
    assert table.worker_types == ("k80", "p100", "v100")
    assert len(table.job_types) == 26
    assert len(table.solo) == 249
    assert len(table.unconsolidated) == 243
    assert table.rate("ResNet-18 (batch size 16)", 1, "v100") == pytest.approx(32.353384, abs=1e-6)
    assert table.pair_rates(
        "v100", ("ResNet-18 (batch size 16)", 1), ("ResNet-18 (batch size 64)", 1)
    ) == pytest.approx((32.353384, 24.093232), abs=1e-6)
    assert table.prices_per_gpu_hour["p100"] == 0.43


def _as_original(**rows):
    return json.dumps({"v100": {"('lm', 1)": rows}}, indent=1)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (_as_original(null=math.nan), ":4: NaN is no measurement"),
        (_as_original(null=-1), ":3: -1 is no rate"),
        (_as_original(null=True), ":3: True is no rate"),
        (_as_original(null=[1, 2]), ":3: [1, 2] is no rate"),
        (_as_original(null=1, other=[1, 2]), ":3: 'other' is no job type"),
        (_as_original(**{"null": 1, "('lm', 1)": [1]}), ":3: [1] are no two rates"),
        ('{"v100": {"x": 1},\n"v100": {}}', "'v100' comes twice"),
        ('{"v100": {"__import__(\'os\')": {"null": 1}}}', "is no job type"),
        ('{"v100": 3}', "expected an object, found 3"),
        ('{"v100": ', ":1: is no JSON"),
        ('{"a":' * 100_000, "is no JSON"),
        ('{"v100": {"(\'lm\', 1)": {"null": 1' + "0" * 400 + "}}}", "is no rate"),
        ('{"v100": {"(\'lm\', 0)": {"null": 1}}}', "with 0 GPUs"),
        ("hello", "is no throughput table"),
        ("", "is empty"),
    ],
)
def test_a_table_that_cannot_be_right_is_refused_with_its_place(tmp_path, text, said):
    """File, line where there is one, and what is wrong."""
    file = tmp_path / "rates.json"
    file.write_text(text)
    with pytest.raises(TraceError) as refusal:
        load_throughputs(file)
    assert said in str(refusal.value)
    assert str(refusal.value).startswith(str(file))


def test_a_missing_file_is_named(tmp_path):
    """No traceback for a mistyped path."""
    with pytest.raises(TraceError, match=r"nowhere\.json: cannot be read: No such file"):
        load_throughputs(tmp_path / "nowhere.json")
