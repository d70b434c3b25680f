"""Capacity and prices over time."""

from contextlib import suppress

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.public_data import public_data
from traces.errors import TraceError
from traces.time_series import CapacityChange, PriceChange, read_capacity, read_prices

GPUS, USD = "t_s,worker_type,gpus\n", "t_s,worker_type,price_per_gpu_hour\n"


def written(tmp_path, text):
    """A file with this text."""
    file = tmp_path / "series.csv"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return file


def test_our_own_tables_are_read(tmp_path):
    """Typed, in order of time and then type."""
    assert read_capacity(written(tmp_path, GPUS + "0,v100,8\n0,a100,4\n90.5,v100,0\n")) == (
        CapacityChange(0.0, "a100", 4),
        CapacityChange(0.0, "v100", 8),
        CapacityChange(90.5, "v100", 0),
    )
    assert read_prices(written(tmp_path, USD + "0,v100,0.9\n60,v100,1.2\n")) == (
        PriceChange(0.0, "v100", 0.9),
        PriceChange(60.0, "v100", 1.2),
    )


@pytest.mark.parametrize(
    ("read", "text", "said"),
    [
        (read_capacity, GPUS + "5,v100,1\n3,v100,1\n", ":3: t_s: 3 is before the line above; sort the lines"),
        (
            read_capacity,
            GPUS + "5,v100,1\n5,v100,2\n",
            ":3: worker_type: 'v100' at 5 s is already given above",
        ),
        (read_capacity, GPUS + "-1,v100,1\n", ":2: t_s: is -1.0"),
        (read_capacity, GPUS + "nan,v100,1\n", ":2: t_s: 'nan' is not a number"),
        (read_capacity, GPUS + "0,v100,1.5\n", ":2: gpus: is '1.5'; give a whole number"),
        (read_capacity, GPUS + "0,v100,-1\n", ":2: gpus: is -1"),
        (read_capacity, GPUS + "0,,1\n", ":2: worker_type: is empty"),
        (read_capacity, GPUS + "0,v100\n", ":2: 2 fields where the table has 3"),
        (read_capacity, USD, "unknown column; did you mean 'gpus'?"),
        (read_prices, USD + "0,v100,-0.1\n", ":2: price_per_gpu_hour: is -0.1"),
        (read_prices, "a,b\n", "is not such a table; its columns are t_s, worker_type, price_per_gpu_hour"),
    ],
)
def test_what_cannot_be_right_is_refused_with_its_line(tmp_path, read, text, said):
    """File, line, column, what is wrong and what to do."""
    with pytest.raises(TraceError) as refused:
        read(written(tmp_path, text))
    if text == USD:
        assert "price_per_gpu_hour': unknown column" in str(refused.value)
    else:
        assert said in str(refused.value)


def test_sizes_of_a_spot_cluster_are_read():
    """Two clusters, of V100 and of T4; time never runs backwards."""
    changes = read_capacity(public_data("spot/spot_availability.csv"))
    assert {change.worker_type for change in changes} == {"t4", "v100"}
    assert [change.t_s for change in changes] == sorted(change.t_s for change in changes)
    assert CapacityChange(600.0, "t4", 21) in changes


def test_events_of_instances_become_capacity():
    """What runs counts, what was created or failed does not; it starts with nothing and never falls below."""
    changes = read_capacity(public_data("spot/dime_instance_events.csv"))
    assert min(change.gpus for change in changes) == 0
    assert max(change.gpus for change in changes) > 0
    assert changes[0].t_s == 0


def test_spot_prices_are_the_lowest_there_are():
    """Of all zones and sizes of instances, of one cloud or of all; only changes are listed."""
    path = public_data("spot/spot_prices.csv")
    every, aws = read_prices(path), read_prices(path, cloud="aws")
    assert {change.worker_type for change in every} == {"k80", "p100", "v100"}
    assert {change.worker_type for change in aws} == {"k80", "v100"}
    lowest = min(change.price_per_gpu_hour for change in aws if change.worker_type == "v100")
    assert 0.5 < lowest < 1.5
    last = {}
    for change in every:
        assert last.get(change.worker_type) != change.price_per_gpu_hour
        last[change.worker_type] = change.price_per_gpu_hour


CELLS = st.sampled_from(
    ["", "0", "5", "-1", "nan", "v100", '"', "1e999", "2020-03-15", "2020-03-15T10:07:33Z"]
)
TABLES = st.tuples(
    st.sampled_from([GPUS, USD, "timestamp,cloud,zone,instance_type,gpu_type,price_usd_per_gpu_h\n"]),
    st.lists(st.lists(CELLS, min_size=1, max_size=6), max_size=4),
).map(lambda it: (it[0] + "\n".join(",".join(line) for line in it[1])).encode())


@given(st.binary(max_size=100) | TABLES)
@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whatever_bytes_come_in_only_trace_errors_come_out(tmp_path, data):
    """Changes, or a refusal that says why: nothing else."""
    for read in (read_capacity, read_prices):
        with suppress(TraceError):
            read(written(tmp_path, data))
