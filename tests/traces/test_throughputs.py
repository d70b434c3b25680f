"""Throughput tables: what they contain, how they are read, and which are refused.

"The original" is the research prototype of the Gavel paper.
"""

import copy
import dataclasses
import json
import math
import re
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scheduler.model import bounds
from tests.support.public_data import public_data
from tests.support.traces import write_folder
from tests.support.wording import Wording
from tests.traces.tables import published, small
from traces import limits
from traces.errors import BadRow, BadTable, TraceError
from traces.throughput_files import load_throughputs
from traces.throughputs import Throughputs


def test_rates_are_looked_up_and_zero_when_unknown():
    """A rate is 0 if the job does not fit or the rate is unknown; one GPU is never spread."""
    table = small()
    assert table.rate("lm", 2, "v100") == 7.0
    assert table.rate("lm", 2, "v100", consolidated=False) == 5.0
    assert table.rate("lm", 1, "v100", consolidated=False) == 4.0
    assert table.rate("big", 1, "k80") == table.rate("lm", 64, "v100") == table.rate("?", 1, "tpu") == 0.0


def test_pairs_are_listed_in_both_orders():
    """Rates of a pair come in the order in which the jobs are named."""
    table = small()
    assert table.pairs["v100", "lm", 1, "big", 1] == (3.0, 1.5)
    assert table.pairs["v100", "big", 1, "lm", 1] == (1.5, 3.0)
    assert ("k80", "big", 1, "lm", 1) not in table.pairs


def test_types_and_widths_are_listed():
    """Types are in the order of the table; widths are those at which a job runs."""
    table = small()
    assert table.worker_types == ("v100", "k80")
    assert table.job_types == ("lm", "big")
    assert (table.widths("lm"), table.widths("big"), table.widths("?")) == ((1, 2), (1,), ())


def test_durations_refer_to_v100_or_to_a_type_on_which_the_job_fits():
    """The reference is the V100, or else the first type on which the job can run."""
    assert small().reference_rate("lm", 1) == 4.0
    assert small().restrict(["k80"]).reference_rate("lm", 1) == 1.0
    assert small().restrict(["k80"]).reference_rate("big", 1) == 0.0


def test_restricting_keeps_only_these_types(wording):
    """Rates, pairs and prices of the other types are removed; an unknown type is refused."""
    table = small().restrict(["k80"])
    assert table.worker_types == ("k80",)
    assert dict(table.pairs) == {}
    assert dict(table.prices_per_gpu_hour) == {"k80": 0.135}
    with pytest.raises(BadTable, match="'k80'") as refused:
        small().restrict(["k8"])
    wording(refused.value)


def test_a_table_does_not_change():
    """Neither the fields nor the rates of a table can be set."""
    with pytest.raises(dataclasses.FrozenInstanceError):
        small().source = "other"
    with pytest.raises(TypeError):
        small().solo["lm", 1, "v100"] = 9.0


@pytest.mark.parametrize("rate", [math.nan, math.inf, -1.0])
def test_impossible_rates_are_refused(rate):
    """Rates alone, spread and in pairs, and prices, are never NaN, infinite or negative."""
    for wrong in (
        {"solo": {("lm", 1, "v100"): rate}},
        {"solo": {}, "unconsolidated": {("lm", 2, "v100"): rate}},
        {"solo": {}, "pairs": {("v100", "lm", 1, "lm", 1): (1.0, rate)}},
        {"solo": {}, "prices_per_gpu_hour": {"v100": rate}},
    ):
        with pytest.raises(BadTable, match=r"lm|v100"):
            Throughputs(**wrong)


def test_pairs_that_contradict_each_other_are_refused(wording):
    """A pair that is stated both ways with different rates is refused."""
    pairs = {("v100", "a", 1, "b", 1): (1.0, 2.0), ("v100", "b", 1, "a", 1): (2.0, 1.5)}
    with pytest.raises(BadTable, match=r"'a'.*'b'|'b'.*'a'") as refused:
        Throughputs(solo={("a", 1, "v100"): 3.0}, pairs=pairs)
    wording(refused.value)


def test_the_published_table_is_read_whole():
    """The table has 83 rows of three types, spread rates, pairs both ways, and the published prices."""
    table = published()
    assert table.worker_types == ("k80", "p100", "v100")
    assert len(table.job_types) == 26
    assert len(table.solo) == 249
    assert len(table.unconsolidated) == 243
    assert table.rate("ResNet-18 (batch size 16)", 1, "v100") == pytest.approx(32.353384, abs=1e-6)
    pair = ("v100", "ResNet-18 (batch size 16)", 1, "ResNet-18 (batch size 64)", 1)
    assert table.pairs[pair] == pytest.approx((32.353384, 24.093232), abs=1e-6)
    assert table.prices_per_gpu_hour["p100"] == 0.43


def test_a_table_can_be_copied_and_sent():
    """A table can be copied, because simulations run in other processes."""
    assert copy.deepcopy(small()) == small()


# The message of the standard library's parser, which differs between versions of Python.
PARSER = re.compile(r"(?<=is not JSON: )[^;]*")


def _as_original(**rows):
    return json.dumps({"v100": {"('lm', 1)": rows}}, indent=1)


@pytest.mark.parametrize(
    ("text", "place"),
    [
        (_as_original(null=math.nan), ":4"),
        (_as_original(null=-1), ":4"),
        (_as_original(null=True), ":4"),
        (_as_original(null=[1, 2]), ":4"),
        (_as_original(null=1, other=[1, 2]), ":5"),
        (_as_original(**{"null": 1, "('lm', 1)": [1]}), ":5"),
        ('{"v100": {"x": 1},\n"p100": {},\n"v100": {}}', ":3"),
        ('{"a": 1,\n"\\u0061": 2}}}', ":2"),
        ('{"v100": {"(\'\\ud800\', 1)": {"null": 1}}}', ""),
        ('{"v100": {"x": [NaN\n]}}', ":1"),
        (
            '{"v100": {\n"(\'a\', 1)": {"null": 1, "(\'b\', 1)": [1, 2]},\n"(\'b\', 1)": {\n"(\'a\', 1)": [2, 3]}}}',
            ":4",
        ),
        ('{"v100": {"__import__(\'os\')": {"null": 1}}}', ":1"),
        ('{"v100": 3}', ":1"),
        ('{"v100": ', ":1"),
        pytest.param('{"a":' * 100_000, "", id="deeply nested"),
        pytest.param('{"v100": {"(\'lm\', 1)": {"null": 1' + "0" * 400 + "}}}", ":1", id="400 digits"),
        ('{"v100": {"(\'lm\', 0)": {"null": 1}}}', ":1"),
        ("hello", ""),
        ("", ""),
    ],
)
def test_a_bad_table_is_refused_with_its_place(tmp_path, text, place, wording):
    """The error has the file, the line if there is one, and the fault."""
    file = tmp_path / "rates.json"
    file.write_text(text)
    with pytest.raises(TraceError) as refusal:
        load_throughputs(file)
    assert str(refusal.value).startswith(f"{file}{place}: ")
    wording(refusal.value, folder=tmp_path, fault=PARSER)


def test_a_missing_file_is_named(tmp_path, wording):
    """A mistyped path leads to an error with the path, and not to a traceback."""
    file = tmp_path / "nowhere.json"
    with pytest.raises(TraceError) as refusal:
        load_throughputs(file)
    assert str(refusal.value).startswith(f"{file}: ")
    wording(refusal.value, folder=tmp_path)


# ------------------------------------------------------------------------------------------------ CSV tables


def test_a_written_folder_is_read_back_unchanged(tmp_path):
    """Rates, placements, pairs, prices and memory survive writing and reading."""
    table = dataclasses.replace(small(), memory_gb={"v100": 16.0}, source="kept")
    write_folder(tmp_path / "kept", table)
    assert load_throughputs(tmp_path / "kept") == table


def test_published_measurements_are_one_set_out_of_several(wording):
    """The chosen set of measurements in the CSV table equals the original's JSON file; a choice must be made."""
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
    with pytest.raises(TraceError, match="physical, simulation") as refused:
        load_throughputs(path)
    wording(refused.value, folder=path.parent)
    with pytest.raises(TraceError, match="'physical'") as refused:
        load_throughputs(path, measured="phisical")
    wording(refused.value, folder=path.parent)


def test_other_published_tables_are_read():
    """Shockwave's table has the same columns; in ElasticFlow's the batch size becomes part of the job type."""
    shockwave = load_throughputs(public_data("throughputs/shockwave_throughputs.csv"))
    assert len(shockwave.solo) == 83
    assert shockwave.rate("LM (batch size 5)", 1, "v100") == 161.984
    elastic = load_throughputs(public_data("throughputs/elasticflow_throughputs.csv"))
    assert elastic.rate("bert (batch size 384)", 2, "t4") == 0.0720226
    assert elastic.widths("bert (batch size 384)") == (1, 2, 4, 8, 16, 32, 64)
    # Larger widths were not measured.
    assert elastic.widths("yolov3 (batch size 64)") == (1, 2, 4, 8, 16)


RATES = "job_type,gpus,worker_type,placement,steps_per_s\n"


@pytest.mark.parametrize(
    ("text", "place"),
    [
        (RATES + "lm,1,v100,consolidated,nan\n", ":2: steps_per_s"),
        (RATES + "lm,1,v100,consolidated,-1\n", ":2: steps_per_s"),
        (
            RATES + "lm,1,v100,,1\nlm,1,v100,consolidated,2\n",
            ":3: job_type",
        ),
        (RATES + "lm,0,v100,,1\n", ":2: gpus"),
        (RATES + "lm,1.5,v100,,1\n", ":2: gpus"),
        (RATES + "lm,1,,,1\n", ":2: worker_type"),
        (RATES + "lm,1,v100,consolidate,1\n", ":2: placement"),
        (RATES + "lm,1,v100\n", ":2"),
        (
            "job_type,gpus,worker_typ,steps_per_s\n",
            ":1: 'worker_typ'",
        ),
        ("job_type,gpus,worker_type\n", ":1: steps_per_s"),
        ("a,b\n1,2\n", ""),
    ],
)
def test_bad_rates_are_refused_with_their_line(tmp_path, text, place, wording):
    """The error has file, line, column, fault and remedy."""
    file = tmp_path / "rates.csv"
    file.write_text(text)
    with pytest.raises(TraceError) as refusal:
        load_throughputs(file)
    assert str(refusal.value).startswith(f"{file}{place}: ")
    wording(refusal.value, folder=tmp_path)


@pytest.mark.parametrize("again", ["v100,lm,1,big,1,3,2", "v100,big,1,lm,1,9,3"])
def test_a_pair_with_two_rates_is_refused(tmp_path, again, wording):
    """A pair that is stated twice, or both ways with different rates, is refused."""
    write_folder(tmp_path, small())
    with (tmp_path / "pairs.csv").open("a") as file:
        file.write(again + "\n")
    with pytest.raises(TraceError, match=r"pairs\.csv:3: job_type_a: ") as refused:
        load_throughputs(tmp_path)
    wording(refused.value, folder=tmp_path)


@pytest.mark.parametrize(
    ("file", "line", "place"),
    [
        ("pairs.csv", "v100,lm,1,bigg,1,3,2", "pairs.csv:3: job_type_b"),
        ("types.csv", "v1000,3,16", "types.csv:4: worker_type"),
    ],
)
def test_names_without_rates_are_refused(tmp_path, file, line, place, wording):
    """A typing error in one of a folder's tables is refused, not passed over."""
    write_folder(tmp_path, small())
    with (tmp_path / file).open("a") as table:
        table.write(line + "\n")
    with pytest.raises(TraceError) as refusal:
        load_throughputs(tmp_path)
    assert str(refusal.value).startswith(f"{tmp_path / place}: ")
    wording(refusal.value, folder=tmp_path)


@given(st.binary(max_size=300) | st.text(max_size=200).map(lambda text: (RATES + text).encode()))
@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_bytes_give_a_table_or_a_trace_error(tmp_path, data):
    """No bytes lead to another exception than TraceError."""
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
def test_any_json_gives_a_table_or_a_trace_error(tmp_path, tree):
    """Objects of any shape, with NaN and huge numbers, lead to no other exception than TraceError."""
    file = tmp_path / "fuzzed.json"
    file.write_text(json.dumps({"v100": tree}))
    with suppress(TraceError):
        load_throughputs(file)


@pytest.mark.parametrize(
    ("limit", "bound"),
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
def test_limits_of_tables_are_those_of_the_scheduler(limit: limits.Limits, bound: bounds.Bound) -> None:
    """A table may hold exactly the values that the scheduler accepts."""
    assert limit == (bound.least, bound.most, bound.zero)


@pytest.mark.parametrize("rate", ["1e300", "1e-300", "-1"])
def test_a_rate_beyond_all_limits_is_refused_with_its_line(
    rate: str, tmp_path: Path, wording: Wording
) -> None:
    """The error has file, line, column and the limits."""
    table = tmp_path / "rates.csv"
    table.write_text(f"job_type,gpus,worker_type,steps_per_s\na,1,v100,1\nb,1,v100,{rate}\n")
    with pytest.raises(BadRow, match=r"rates.csv:3: steps_per_s: .*1e-09 .*1e\+09") as refused:
        load_throughputs(table)
    wording(refused.value, folder=tmp_path)
