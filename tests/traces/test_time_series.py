"""Tables of capacity and of prices over time: how they are read, and which are refused."""

from contextlib import suppress

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.public_data import public_data
from traces.errors import TraceError
from traces.time_series import CapacityChange, PriceChange, read_capacity, read_prices

GPUS, USD = "t_s,worker_type,gpus\n", "t_s,worker_type,price_per_gpu_hour\n"


def written(tmp_path, text):
    """Write a file with this text."""
    file = tmp_path / "series.csv"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return file


def test_plain_tables_are_read(tmp_path):
    """Changes are typed, and in order of time and then of worker type."""
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
    ("read", "text", "place"),
    [
        (read_capacity, GPUS + "5,v100,1\n3,v100,1\n", ":3: t_s"),
        (read_capacity, GPUS + "5,v100,1\n5,v100,2\n", ":3: worker_type"),
        (read_capacity, GPUS + "-1,v100,1\n", ":2: t_s"),
        (read_capacity, GPUS + "nan,v100,1\n", ":2: t_s"),
        (read_capacity, GPUS + "0,v100,1.5\n", ":2: gpus"),
        (read_capacity, GPUS + "0,v100,-1\n", ":2: gpus"),
        (read_capacity, GPUS + "0,,1\n", ":2: worker_type"),
        (read_capacity, GPUS + "0,v100\n", ":2"),
        (read_capacity, USD, ":1: 'price_per_gpu_hour'"),
        (read_prices, USD + "0,v100,-0.1\n", ":2: price_per_gpu_hour"),
        (read_prices, "a,b\n", ""),
    ],
)
def test_bad_tables_are_refused_with_their_line(tmp_path, read, text, place, wording):
    """The error has file, line, column, fault and remedy."""
    with pytest.raises(TraceError) as refused:
        read(written(tmp_path, text))
    assert str(refused.value).startswith(f"{tmp_path / 'series.csv'}{place}: ")
    wording(refused.value, folder=tmp_path)


def test_sizes_of_a_spot_cluster_are_read():
    """The file has two clusters, of V100 and of T4, and its changes are in order of time."""
    changes = read_capacity(public_data("spot/spot_availability.csv"))
    assert {change.worker_type for change in changes} == {"t4", "v100"}
    assert [change.t_s for change in changes] == sorted(change.t_s for change in changes)
    assert CapacityChange(600.0, "t4", 21) in changes


def test_events_of_instances_become_capacity():
    """Only running instances count, so capacity starts at 0 and is never negative."""
    changes = read_capacity(public_data("spot/dime_instance_events.csv"))
    assert min(change.gpus for change in changes) == 0
    assert max(change.gpus for change in changes) > 0
    assert changes[0].t_s == 0


def test_spot_prices_are_the_lowest_of_all_offers():
    """A price is the lowest of all zones and instance sizes, of one cloud or of all; only changes are listed."""
    path = public_data("spot/spot_prices.csv")
    all_clouds, aws = read_prices(path), read_prices(path, cloud="aws")
    assert {change.worker_type for change in all_clouds} == {"k80", "p100", "v100"}
    assert {change.worker_type for change in aws} == {"k80", "v100"}
    lowest = min(change.price_per_gpu_hour for change in aws if change.worker_type == "v100")
    assert 0.5 < lowest < 1.5
    last = {}
    for change in all_clouds:
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
def test_any_bytes_give_changes_or_a_trace_error(tmp_path, data):
    """No bytes lead to another exception than TraceError."""
    for read in (read_capacity, read_prices):
        with suppress(TraceError):
            read(written(tmp_path, data))
