"""What a throughput table promises."""

import copy
import dataclasses
import json
import math
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scheduler.model import bounds
from tests.support.public_data import public_data
from tests.support.traces import write_folder
from tests.traces.tables import published, small
from traces import limits
from traces.errors import BadRow, BadTable, TraceError
from traces.throughput_files import load_throughputs
from traces.throughputs import Throughputs


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


def test_a_table_can_be_copied_and_sent():
    """Simulations run in other processes."""
    assert copy.deepcopy(small()) == small()


def _as_original(**rows):
    return json.dumps({"v100": {"('lm', 1)": rows}}, indent=1)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (_as_original(null=math.nan), ":4: NaN is not a measurement"),
        (_as_original(null=-1), ":4: -1 is not a rate"),
        (_as_original(null=True), ":4: True is not a rate"),
        (_as_original(null=[1, 2]), ":4: [1, 2] is not a rate"),
        (_as_original(null=1, other=[1, 2]), ":5: 'other' is not a job type"),
        (_as_original(**{"null": 1, "('lm', 1)": [1]}), ":5: [1] is not a pair of rates"),
        ('{"v100": {"x": 1},\n"p100": {},\n"v100": {}}', ":3: 'v100' appears twice"),
        ('{"a": 1,\n"\\u0061": 2}}}', ":2: 'a' appears twice"),
        ('{"v100": {"(\'\\ud800\', 1)": {"null": 1}}}', "'\\ud800' is not a name"),
        ('{"v100": {"x": [NaN\n]}}', ":1: NaN is not a measurement"),
        (
            '{"v100": {\n"(\'a\', 1)": {"null": 1, "(\'b\', 1)": [1, 2]},\n"(\'b\', 1)": {\n"(\'a\', 1)": [2, 3]}}}',
            ":4: pair: has other rates the other way round",
        ),
        ('{"v100": {"__import__(\'os\')": {"null": 1}}}', "is not a job type"),
        ('{"v100": 3}', "expected an object, found 3"),
        ('{"v100": ', ":1: is not JSON"),
        ('{"a":' * 100_000, "is not JSON"),
        ('{"v100": {"(\'lm\', 1)": {"null": 1' + "0" * 400 + "}}}", "is not a rate"),
        ('{"v100": {"(\'lm\', 0)": {"null": 1}}}', "is not a job type"),
        ("hello", "is not a throughput table"),
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


# ------------------------------------------------------------------------------------------------ CSV tables


def test_a_folder_of_ours_is_read_back_as_it_was_written(tmp_path):
    """Rates, placements, pairs, prices and memory."""
    table = dataclasses.replace(small(), memory_gb={"v100": 16.0}, source="kept")
    write_folder(tmp_path / "kept", table)
    assert load_throughputs(tmp_path / "kept") == table


def test_published_measurements_are_one_set_out_of_several():
    """The tidy table of the original's figures equals its JSON, set by set; without a choice it is refused."""
    path = public_data("throughputs/gavel_throughputs.csv")
    pairs = public_data("throughputs/gavel_colocated.csv")
    table = load_throughputs(path, measured="simulation", pairs=pairs)
    original = published()
    assert table.solo.keys() == original.solo.keys()
    assert table.unconsolidated.keys() == original.unconsolidated.keys()
    for key, rate in table.solo.items():
        assert original.solo[key] == pytest.approx(rate, rel=1e-5)
    for key, rates in table.pairs.items():
        assert original.pairs[key] == pytest.approx(rates, rel=1e-5)
    assert load_throughputs(path, measured="physical").solo != table.solo
    with pytest.raises(TraceError, match="choose one by measured=NAME: physical, simulation"):
        load_throughputs(path)
    with pytest.raises(TraceError, match="did you mean 'physical'"):
        load_throughputs(path, measured="phisical")


def test_other_published_tables_are_read():
    """Shockwave's has the same columns; ElasticFlow's batch size becomes part of the job type."""
    shockwave = load_throughputs(public_data("throughputs/shockwave_throughputs.csv"))
    assert len(shockwave.solo) == 83
    assert shockwave.rate("LM (batch size 5)", 1, "v100") == 161.984
    elastic = load_throughputs(public_data("throughputs/elasticflow_throughputs.csv"))
    assert elastic.rate("bert (batch size 384)", 2, "t4") == 0.0720226
    assert elastic.widths("bert (batch size 384)") == (1, 2, 4, 8, 16, 32, 64)
    assert elastic.widths("yolov3 (batch size 64)") == (1, 2, 4, 8, 16)  # the wider ones were not measured


RATES = "job_type,gpus,worker_type,placement,steps_per_s\n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (RATES + "lm,1,v100,consolidated,nan\n", ":2: steps_per_s: 'nan' is not a number"),
        (RATES + "lm,1,v100,consolidated,-1\n", ":2: steps_per_s: is -1.0"),
        (
            RATES + "lm,1,v100,,1\nlm,1,v100,consolidated,2\n",
            ":3: job_type: ('lm', 1, 'v100') is already given above",
        ),
        (RATES + "lm,0,v100,,1\n", ":2: gpus: is 0"),
        (RATES + "lm,1.5,v100,,1\n", ":2: gpus: is '1.5'; give a whole number"),
        (RATES + "lm,1,,,1\n", ":2: worker_type: is empty"),
        (RATES + "lm,1,v100,consolidate,1\n", "did you mean 'consolidated'?"),
        (RATES + "lm,1,v100\n", ":2: 3 fields where the table has 5; the line was cut off"),
        (
            "job_type,gpus,worker_typ,steps_per_s\n",
            "'worker_typ': unknown column; did you mean 'worker_type'?",
        ),
        ("job_type,gpus,worker_type\n", "steps_per_s: column is missing"),
        ("a,b\n1,2\n", "is not a throughput table"),
    ],
)
def test_rates_that_cannot_be_right_are_refused_with_their_line(tmp_path, text, said):
    """File, line, column, what is wrong and what to do."""
    file = tmp_path / "rates.csv"
    file.write_text(text)
    with pytest.raises(TraceError) as refusal:
        load_throughputs(file)
    assert said in str(refusal.value)
    assert str(refusal.value).startswith(str(file))


@pytest.mark.parametrize("again", ["v100,lm,1,big,1,3,2", "v100,big,1,lm,1,9,3"])
def test_a_pair_with_two_figures_is_refused(tmp_path, again):
    """Stated twice, or both ways with figures that differ."""
    write_folder(tmp_path, small())
    with (tmp_path / "pairs.csv").open("a") as file:
        file.write(again + "\n")
    with pytest.raises(TraceError, match=r"pairs\.csv:3: job_type_a: .* is already given above"):
        load_throughputs(tmp_path)


@pytest.mark.parametrize(
    ("file", "line", "said"),
    [
        (
            "pairs.csv",
            "v100,lm,1,bigg,1,3,2",
            "pairs.csv:3: job_type_b: 'bigg' has no rates of its own; did you",
        ),
        ("types.csv", "v1000,3,16", "types.csv:4: worker_type: 'v1000' has no rates; did you mean 'v100'?"),
    ],
)
def test_names_that_the_rates_do_not_know_are_refused(tmp_path, file, line, said):
    """A slip of the keyboard in one of a folder's tables is told, not passed over."""
    write_folder(tmp_path, small())
    with (tmp_path / file).open("a") as table:
        table.write(line + "\n")
    with pytest.raises(TraceError) as refusal:
        load_throughputs(tmp_path)
    assert str(refusal.value).startswith(str(tmp_path / said))


@given(st.binary(max_size=300) | st.text(max_size=200).map(lambda text: (RATES + text).encode()))
@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whatever_bytes_come_in_only_trace_errors_come_out(tmp_path, data):
    """A table, or a refusal that says why: nothing else."""
    file = tmp_path / "fuzzed"
    file.write_bytes(data)
    with suppress(TraceError):
        load_throughputs(file)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(st.sampled_from(["v100", "('lm', 1)", "null", "x"]), inner, max_size=3)
        ),
        max_leaves=12,
    )
)
@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whatever_json_comes_in_only_trace_errors_come_out(tmp_path, tree):
    """Objects of every shape, NaN and huge numbers among them."""
    file = tmp_path / "fuzzed.json"
    file.write_text(json.dumps({"v100": tree}))
    with suppress(TraceError):
        load_throughputs(file)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (limits.RATE, bounds.TABLE_RATE),
        (limits.PRICE, bounds.PRICE),
        (limits.MEMORY_GB, bounds.MEMORY_GB),
        (limits.STEPS, bounds.STEPS),
        (limits.WEIGHT, bounds.WEIGHT),
        (limits.TIME_S, bounds.TIME_S),
        (limits.LENGTH_S, bounds.LENGTH_S),
    ],
)
def test_limits_of_tables_are_those_of_the_scheduler(ours: limits.Limits, theirs: bounds.Bound) -> None:
    """What a table may hold, a scheduler takes, and nothing else."""
    assert ours == (theirs.least, theirs.most, theirs.zero)


@pytest.mark.parametrize("rate", ["1e300", "1e-300", "-1"])
def test_a_rate_beyond_all_limits_is_told_with_its_line(rate: str, tmp_path: Path) -> None:
    """File, line, column and what is possible."""
    table = tmp_path / "rates.csv"
    table.write_text(f"job_type,gpus,worker_type,steps_per_s\na,1,v100,1\nb,1,v100,{rate}\n")
    with pytest.raises(BadRow, match=r"rates.csv:3: steps_per_s: is .*; give 0 or 1e-09 to 1e\+09"):
        load_throughputs(table)
