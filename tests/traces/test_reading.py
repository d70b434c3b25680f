"""Reading traces: every format, refusals, repairs and notes about repairs.

"The original" is the research prototype of the Gavel paper.
"""

import gzip
import re
import time
from contextlib import suppress
from itertools import islice

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.public_data import PROJECT, public_data
from tests.traces.tables import published, small
from traces.errors import TraceError
from traces.formats import read_trace, write_trace
from traces.published import published_jobs
from traces.roofline import default_throughputs
from traces.trace import Trace, TraceJob

HEADER = "id,arrival_s,job_type,gpus,steps,duration_s\n"
FILE_AND_FUNCTION = settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])


def read(tmp_path, text, **how):
    """Read the trace in this text."""
    file = tmp_path / "some.trace"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return read_trace(file, **how)


def refusal(tmp_path, text, **how):
    """Read a text that is refused; return the error without the path with which it begins."""
    with pytest.raises(TraceError) as refused:
        read(tmp_path, text, **how)
    message = str(refused.value)
    assert message.startswith(str(tmp_path / "some.trace"))
    return message.removeprefix(str(tmp_path / "some.trace"))


# ---------------------------------------------------------------------------------------------- write → read

WORDS = st.text(
    st.characters(categories=("L", "N", "P", "S"), include_characters=" ,\"'"), min_size=1, max_size=12
).filter(lambda text: text == text.strip() and text.isprintable())
POSITIVE = st.floats(1e-2, 1e6)


@st.composite
def jobs(draw, **fixed):
    """Any jobs that a trace can hold, in order of arrival."""
    drawn = []
    for n, arrival_s in enumerate(sorted(draw(st.lists(st.floats(0, 1e9), min_size=1, max_size=5)))):
        together, groups = draw(st.integers(1, 4)), draw(st.integers(1, 16))
        facts = {
            "id": f"{draw(WORDS)}·{n}",
            "arrival_s": arrival_s,
            "job_type": draw(WORDS),
            "gpus": together * groups,
            "steps": draw(st.none() | POSITIVE),
            "duration_s": draw(st.none() | POSITIVE),
            "weight": draw(POSITIVE),
            "tenant": draw(st.just("") | WORDS),
            "deadline_s": draw(st.none() | POSITIVE),
            "gpus_min": draw(st.none() | st.integers(1, groups).map(together.__mul__)),
            "gpus_max": draw(st.none() | st.integers(groups, 99).map(together.__mul__)),
            "gpus_together": together,
            "worker_types": tuple(draw(st.lists(st.sampled_from(["v100", "a100-80gb"]), max_size=2))),
            "name": draw(st.just("") | WORDS),
            "user": draw(st.just("") | WORDS),
        }
        drawn.append(TraceJob(**facts | fixed))
    return drawn


@given(jobs())
@FILE_AND_FUNCTION
def test_a_written_table_gives_every_job_back(tmp_path, written):
    """Commas, quotes, letters of any script and all digits of every number survive writing and reading."""
    write_trace(tmp_path / "round.csv", written)
    assert read_trace(tmp_path / "round.csv").jobs == tuple(written)


@given(jobs(deadline_s=None, tenant="", gpus_min=None, gpus_max=None, worker_types=(), name="", user=""))
@FILE_AND_FUNCTION
def test_the_originals_format_keeps_its_fields(tmp_path, written):
    """The original's format keeps job type, GPUs, weight, arrival and whole steps, but neither ids nor durations.

    The id of a job becomes its line number.
    """
    written = [job for job in written if job.steps is not None]
    write_trace(tmp_path / "round.trace", written)
    if written:
        back = read_trace(tmp_path / "round.trace")
        assert [job.id for job in back] == [str(n) for n in range(len(written))]
        for a, b in zip(written, back, strict=True):
            assert (a.job_type, a.gpus, a.weight, a.arrival_s) == (b.job_type, b.gpus, b.weight, b.arrival_s)
            assert b.steps == max(1, round(a.steps))


def test_deadlines_survive_the_originals_format(tmp_path, wording):
    """A deadline is written as a multiple of the duration, and read back with a throughput table."""
    job = TraceJob(id="0", arrival_s=0.0, job_type="lm", steps=400.0, duration_s=100.0, deadline_s=200.0)
    write_trace(tmp_path / "due.trace", [job])
    assert read_trace(tmp_path / "due.trace", throughputs=small()).jobs == (job,)
    with pytest.raises(TraceError, match=r":1: deadline_s: ") as refused:
        read_trace(tmp_path / "due.trace")
    wording(refused.value, folder=tmp_path)


def test_jobs_that_the_originals_format_cannot_hold_are_not_written(tmp_path, wording):
    """A job without steps, and a deadline without a duration, are refused by id and field."""
    job = TraceJob(id="x", arrival_s=0.0, job_type="lm", deadline_s=9.0)
    with pytest.raises(TraceError, match="steps: job 'x'") as refused:
        write_trace(tmp_path / "a.trace", [job])
    wording(refused.value, folder=tmp_path)
    job = TraceJob(id="x", arrival_s=0.0, job_type="lm", deadline_s=9.0, steps=1.0)
    with pytest.raises(TraceError, match="duration_s: job 'x'") as refused:
        write_trace(tmp_path / "a.trace", [job])
    wording(refused.value, folder=tmp_path)


def test_the_time_to_read_a_trace_grows_as_its_length(tmp_path):
    """Eight times the lines take about eight times as long, and not sixty-four times."""
    jobs = list(islice(published_jobs("multi", rate_per_h=9, seed=0, throughputs=published()), 80_000))

    def cpu_s(lines: int) -> float:
        write_trace(path := tmp_path / f"{lines}.csv", jobs[:lines])
        start_s = time.process_time()
        read_trace(path)
        return time.process_time() - start_s

    assert cpu_s(80_000) < 24 * cpu_s(10_000)


# ----------------------------------------------------------------------------------------- published traces


def test_the_originals_own_traces_are_read():
    """The original's traces, with 10 fields a line, give the same jobs as the CSV table that was made from them."""
    for name, length in (("artifact_evaluation", 15), ("minimize_makespan", 100)):
        trace = read_trace(public_data(f"gavel/traces/{name}.trace"))
        tidied = read_trace(public_data("traces/gavel_physical.csv"), subtrace=name)
        assert len(trace) == length
        for a, b in zip(trace, tidied, strict=True):
            assert (a.job_type, a.gpus, a.steps, a.arrival_s) == (b.job_type, b.gpus, b.steps, b.arrival_s)


def test_older_layouts_of_the_original_are_told_apart_by_their_number_of_fields(tmp_path):
    """Lines of 7 fields end in arrival and GPUs, lines of 9 in GPUs, weight, SLO and arrival."""
    seven = read(tmp_path, "lm\tpython x\t-n\t1\t500\t60.5\t4\n").jobs[0]
    nine = read(tmp_path, "lm\tpython x\t-n\t1\t500\t4\t1\t-1.000000\t60.5\n").jobs[0]
    assert seven == nine == TraceJob(id="0", arrival_s=60.5, job_type="lm", gpus=4, steps=500.0)


def test_one_of_several_traces_is_chosen(wording):
    """A name chooses a trace, `*` all in order of arrival; without either the error lists the names."""
    path = public_data("traces/gavel_msr.csv")
    chosen = read_trace(path, subtrace="11cb48")
    all_subtraces = read_trace(path, subtrace="*")
    assert (len(chosen), {job.tenant for job in chosen}) == (2000, {"11cb48"})
    assert (len(all_subtraces), len({job.tenant for job in all_subtraces}), all_subtraces.notes) == (
        8931,
        8,
        (),
    )
    with pytest.raises(TraceError, match=r"subtrace: .* 8 subtraces: 103959, 11cb48,") as refused:
        read_trace(path)
    wording(refused.value, folder=path.parent)
    with pytest.raises(TraceError, match="'11cb48'") as refused:
        read_trace(path, subtrace="11cb")
    wording(refused.value, folder=path.parent)


def test_a_trace_is_chosen_before_its_lines_are_checked(tmp_path, wording):
    """In a file of several traces the error asks for a choice, because another trace may have no fault.

    In a file with one trace the error is about the line.
    """
    head = "subtrace,job_id,arrival_s,duration_s,num_gpus,job_type\n"
    wrong, right = "one,a,0,10,3,lm\n", "two,a,0,10,1,lm\n"
    for repair in (False, True):
        with pytest.raises(TraceError, match="2 subtraces: one, two") as refused:
            read(tmp_path, head + wrong + right, throughputs=small(), repair=repair)
        wording(refused.value, folder=tmp_path)
    with pytest.raises(TraceError, match=r":2: .*'lm'.* 3") as refused:
        read(tmp_path, head + wrong, throughputs=small())
    wording(refused.value, folder=tmp_path)


def test_packed_traces_and_their_deadlines_are_read():
    """Strict deadlines count from arrival, and best-effort jobs have none."""
    trace = read_trace(public_data("traces/chronus_philly_mix1.csv.gz"))
    assert len(trace) == 30756
    assert sum(job.deadline_s is not None for job in trace) == 21600
    assert trace.jobs[0].deadline_s == 21540


def test_repair_makes_a_published_trace_fit_a_table(wording):
    """Unknown models and widths are replaced by known ones, in each run by the same; the notes count them."""
    path = public_data("traces/muri_trace1.csv")
    with pytest.raises(TraceError, match=r":2: job_type: 'dqn'") as refused:
        read_trace(path, throughputs=published())
    wording(refused.value, folder=path.parent)
    trace = read_trace(path, throughputs=published(), repair=True)
    assert trace == read_trace(path, throughputs=published(), repair=True)
    assert all(published().reference_rate(job.job_type, job.gpus) > 0 for job in trace)
    assert [note.rpartition(": ")[2] for note in trace.notes] == ["1494", "1494", "65"]
    wording("\n".join(trace.notes))


# ------------------------------------------------------------------------------------------------- refusals

# The message of the standard library's reader, which differs between versions of Python.
PARSER = re.compile(r"(?<=is not CSV: )[^;]*|(?<=cannot be read: )[^;]*")


@pytest.mark.parametrize(
    ("line", "place"),
    [
        ("a,nan,lm,1,5,", ":2: arrival_s"),
        ("a,inf,lm,1,5,", ":2: arrival_s"),
        ("a,-3,lm,1,5,", ":2: arrival_s"),
        ("a,soon,lm,1,5,", ":2: arrival_s"),
        ("a,,lm,1,5,", ":2: arrival_s"),
        (",0,lm,1,5,", ":2: id"),
        ("a,0,,1,5,", ":2: job_type"),
        ("a,0,lm,0,5,", ":2: gpus"),
        ("a,0,lm,-2,5,", ":2: gpus"),
        ("a,0,lm,,5,", ":2: gpus"),
        ("a,0,lm,99999999999,5,", ":2: gpus"),
        ("a,0,lm,1,0,", ":2: steps"),
        ("a,0,lm,1,1e999,", ":2: steps"),
        ("a,0,lm,1,5,-1", ":2: duration_s"),
        ("a\tb,0,lm,1,5,", ":2: id"),
        ("a,0,lm,1,5,,,", ":2"),
        ("a,0,lm", ":2"),
        ('a,0,"lm,1,5,', ":3"),
        ('a,0,"l"m,1,5,', ":2"),
        pytest.param("a,0," + "x" * 200_000 + ",1,5,", ":2", id="a long cell"),
    ],
)
def test_an_impossible_line_is_refused_even_with_repair(tmp_path, line, place, wording):
    """The error has file, line, field, fault and remedy."""
    text = HEADER + line + "\nb,9,lm,1,5,\n"
    message = refusal(tmp_path, text)
    assert message.startswith(f"{place}: ")
    assert refusal(tmp_path, text, repair=True) == message
    wording(message, fault=PARSER)


@pytest.mark.parametrize(
    ("text", "place"),
    [
        (b"", ""),
        (b" \r\n \n", ""),
        (b"\x89PNG\r\n\x1a\n\xff\xfe", ":1"),
        (b"id\0,arrival_s", ":1"),
        (b"\x1f\x8b\x08\x00garbage", ""),
        pytest.param(gzip.compress(b"id,arrival_s\n" * 99, mtime=0)[:-9], "", id="half a gzip file"),
        (b"hello world\n", ""),
        (b"id,arrival,job_type,gpus\n", ":1: 'arrival'"),
        (b"id,arrival_s,gpus\n", ":1: job_type"),
        (b"id,arrival_s,job_type,gpus,gpus\n", ":1: gpus"),
        (b"lm\tx\t-n\t1\t5\t0\n", ":1"),
        (b"lm\tx\t-n\t1\t5\t0\t1\nlm\tx\t-n\t1\n", ":2"),
        (b"lm\tx\t-n\t1\tnan\t0\t1\n", ":1: total_steps"),
        (b"lm\tx\t-n\t1\t5\t0\t\n", ":1: scale_factor"),
    ],
)
def test_a_file_that_is_no_trace_is_refused(tmp_path, text, place, wording):
    """A file that is empty, binary, cut off, or of another kind is refused with the line, if there is one."""
    message = refusal(tmp_path, text)
    assert message.startswith(f"{place}: ")
    wording(message, fault=PARSER)


def test_a_missing_file_is_named(tmp_path, wording):
    """A mistyped path, or a folder, leads to an error with the path, and not to a traceback."""
    for path in (tmp_path / "none.csv", tmp_path):
        with pytest.raises(TraceError) as refused:
            read_trace(path)
        assert str(refused.value).startswith(f"{path}: ")
        wording(refused.value, folder=tmp_path)


def test_a_file_without_a_last_line_end_may_be_cut_off(tmp_path):
    """Without a line end the last number may be cut off, so a note is added."""
    assert "no line end" in read(tmp_path, HEADER + "a,0,lm,1,5,1").notes[0]


def test_the_documented_example_is_a_trace(tmp_path):
    """The example fits the default throughput table, and the documented error is the real one."""
    doc = (PROJECT / "docs" / "trace-format.md").read_text(encoding="utf-8")
    example = re.search(r"((?:    .*,.*\n){3})", doc)[0].replace("    ", "")
    assert len(read(tmp_path, example, throughputs=default_throughputs())) == 2
    documented = re.search(r"jobs\.csv:17(.*)", doc)[1]
    assert refusal(tmp_path, HEADER + "\n" * 15 + "a,nan,lm,1,5,\n") == ":17" + documented


def test_other_line_ends_marks_and_spaces_do_no_harm(tmp_path):
    """CRLF, a byte order mark, empty lines, spaces around cells and a missing last line end are accepted."""
    expected = (TraceJob(id="a", arrival_s=0.0, job_type="lm", gpus=1, steps=5.0),)
    plain = HEADER + "a,0,lm,1,5,\n"
    assert read(tmp_path, plain).jobs == expected
    assert read(tmp_path, b"\xef\xbb\xbf" + plain.encode()).jobs == expected
    assert read(tmp_path, plain.replace("\n", "\r\n\r\n")).jobs == expected
    assert read(tmp_path, plain.replace("arrival_s", '"arrival_s"').replace("lm", '"lm"')).jobs == expected
    assert read(tmp_path, HEADER + " a , 0 , lm , 1 , 5 ,").jobs == expected
    assert read(tmp_path, gzip.compress(plain.encode())).jobs == expected


# -------------------------------------------------------------------------------------------------- repairs


@pytest.mark.parametrize(
    ("lines", "place", "repaired", "count"),
    [
        ("a,5,lm,1,5,\nb,3,lm,1,5,\n", ":3: arrival_s", [("b", 3.0), ("a", 5.0)], 1),
        ("a,0,lm,1,5,\na,1,lm,1,5,\na,2,lm,1,5,\n", ":3: id", [("a", 0.0), ("a#2", 1.0), ("a#3", 2.0)], 2),
        ("a,0,lm,2.0,5,\n", ":2: gpus", [("a", 0.0)], 1),
        ("a,0,lm,1,5,\nb,0,l\n", ":3", [("a", 0.0)], 1),
    ],
)
def test_small_faults_are_refused_or_repaired_and_counted(tmp_path, lines, place, repaired, count, wording):
    """Without `repair` the error suggests it; with it, the notes list each repair, and how often it was made."""
    message = refusal(tmp_path, HEADER + lines)
    assert message.startswith(f"{place}: ")
    trace = read(tmp_path, HEADER + lines, repair=True)
    assert [(job.id, job.arrival_s) for job in trace] == repaired
    (note,) = trace.notes
    assert note.endswith(f": {count}")
    wording(f"{message}\n{note}")


@pytest.mark.parametrize(
    ("line", "place", "repaired"),
    [
        ("a,0,lm,1,,100", ":2: steps", ("lm", 1, 400.0)),
        ("a,0,lm,8,5,", ":2: gpus", ("lm", 2, 5.0)),
        ("a,0,lmm,2,5,", ":2: job_type", ("lm", 2, 5.0)),
        ("a,0,,2,5,", ":2: job_type", ("lm", 2, 5.0)),
    ],
)
def test_repair_makes_a_trace_fit_a_throughput_table(tmp_path, line, place, repaired, wording):
    """Jobs that the table has no rate for are refused, or repaired and counted."""
    text = HEADER + line + "\n"
    message = refusal(tmp_path, text, throughputs=small())
    assert message.startswith(f"{place}: ")
    trace = read(tmp_path, text, throughputs=small(), repair=True)
    assert [(job.job_type, job.gpus, job.steps) for job in trace] == [repaired]
    (note,) = trace.notes
    assert note.endswith(": 1")
    wording(f"{message}\n{note}")


def test_without_a_table_no_steps_are_filled_in(tmp_path):
    """Without a table there are no rates, so a job with only a duration gets no steps, even with repair."""
    trace = read(tmp_path, HEADER + "a,0,lm,1,,100\n", repair=True)
    assert (trace.jobs[0].steps, trace.jobs[0].duration_s, trace.notes) == (None, 100.0, ())


# ------------------------------------------------------------------------------------------------- any bytes

IMPORTED = "subtrace,job_id,arrival_s,duration_s,total_steps,num_gpus,job_type,vc,extra\n"
CELLS = st.sampled_from(
    ["", "1", "0", "-1", "nan", "1e999", "2.0", '"', "a", "9" * 30, "slo=2", "priority=x", "٣", " "]
)
LINES = st.lists(st.lists(CELLS, min_size=1, max_size=10), max_size=4)


@given(
    st.binary(max_size=200)
    | st.tuples(st.sampled_from([HEADER, IMPORTED]), LINES, st.sampled_from(["\n", "\r\n", "\r"])).map(
        lambda it: (it[0] + it[2].join(",".join(line) for line in it[1])).encode()
    )
    | LINES.map(lambda lines: "\n".join("\t".join(line) for line in lines).encode()),
    st.booleans(),
    st.sampled_from([None, small()]),
)
@settings(max_examples=400, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_bytes_give_a_trace_or_a_trace_error(tmp_path, data, repair, throughputs):
    """No bytes lead to another exception than TraceError."""
    file = tmp_path / "fuzzed"
    file.write_bytes(data)
    with suppress(TraceError):
        assert isinstance(read_trace(file, repair=repair, throughputs=throughputs), Trace)
