"""Reading traces: every format, what is refused and how, what is mended and what is said of it."""

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
    """The trace in this text."""
    file = tmp_path / "some.trace"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return read_trace(file, **how)


def refusal(tmp_path, text, **how):
    """What is said about this text, from the line on."""
    with pytest.raises(TraceError) as refused:
        read(tmp_path, text, **how)
    said = str(refused.value)
    assert said.startswith(str(tmp_path / "some.trace"))
    return said.removeprefix(str(tmp_path / "some.trace"))


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
        gpus = draw(st.integers(1, 64))
        facts = {
            "id": f"{draw(WORDS)}·{n}",
            "arrival_s": arrival_s,
            "job_type": draw(WORDS),
            "gpus": gpus,
            "steps": draw(st.none() | POSITIVE),
            "duration_s": draw(st.none() | POSITIVE),
            "weight": draw(POSITIVE),
            "tenant": draw(st.just("") | WORDS),
            "deadline_s": draw(st.none() | POSITIVE),
            "gpus_min": draw(st.none() | st.integers(1, gpus)),
            "gpus_max": draw(st.none() | st.integers(gpus, 99)),
            "worker_types": tuple(draw(st.lists(st.sampled_from(["v100", "a100-80gb"]), max_size=2))),
            "name": draw(st.just("") | WORDS),
            "user": draw(st.just("") | WORDS),
        }
        drawn.append(TraceJob(**facts | fixed))
    return drawn


@given(jobs())
@FILE_AND_FUNCTION
def test_our_own_table_gives_every_job_back(tmp_path, written):
    """Commas, quotes, letters of any script, all digits of every number."""
    write_trace(tmp_path / "round.csv", written)
    assert read_trace(tmp_path / "round.csv").jobs == tuple(written)


@given(jobs(deadline_s=None, tenant="", gpus_min=None, gpus_max=None, worker_types=(), name="", user=""))
@FILE_AND_FUNCTION
def test_the_originals_format_keeps_what_it_has_a_field_for(tmp_path, written):
    """Type, whole steps, GPUs, weight and arrival; ids become line numbers, durations are not kept."""
    written = [job for job in written if job.steps is not None]
    write_trace(tmp_path / "round.trace", written)
    if written:
        back = read_trace(tmp_path / "round.trace")
        assert [job.id for job in back] == [str(n) for n in range(len(written))]
        for a, b in zip(written, back, strict=True):
            assert (a.job_type, a.gpus, a.weight, a.arrival_s) == (b.job_type, b.gpus, b.weight, b.arrival_s)
            assert b.steps == max(1, round(a.steps))


def test_deadlines_survive_the_originals_format(tmp_path):
    """As a multiple of the duration, which a throughput table gives back."""
    job = TraceJob(id="0", arrival_s=0.0, job_type="lm", steps=400.0, duration_s=100.0, deadline_s=200.0)
    write_trace(tmp_path / "due.trace", [job])
    assert read_trace(tmp_path / "due.trace", throughputs=small()).jobs == (job,)
    with pytest.raises(TraceError, match=r":1: deadline_s: .* not known; give a throughput table"):
        read_trace(tmp_path / "due.trace")


def test_what_the_originals_format_cannot_say_is_not_written(tmp_path):
    """A job without steps, and a deadline without a duration, are refused by id and field."""
    job = TraceJob(id="x", arrival_s=0.0, job_type="lm", deadline_s=9.0)
    with pytest.raises(TraceError, match="steps: job 'x' has none"):
        write_trace(tmp_path / "a.trace", [job])
    job = TraceJob(id="x", arrival_s=0.0, job_type="lm", deadline_s=9.0, steps=1.0)
    with pytest.raises(TraceError, match="duration_s: job 'x' has a deadline and no duration"):
        write_trace(tmp_path / "a.trace", [job])


def test_the_time_to_read_a_trace_grows_as_its_length(tmp_path):
    """Eight times the lines take some eight times as long, not sixty-four."""
    jobs = list(islice(published_jobs("multi", rate_per_h=9, seed=0, throughputs=published()), 80_000))

    def cpu_s(lines: int) -> float:
        write_trace(path := tmp_path / f"{lines}.csv", jobs[:lines])
        start_s = time.process_time()
        read_trace(path)
        return time.process_time() - start_s

    assert cpu_s(80_000) < 24 * cpu_s(10_000)


# ----------------------------------------------------------------------------------------- published traces


def test_the_originals_own_traces_are_read():
    """10 fields: the same jobs as in the tidy table of them."""
    for name, length in (("artifact_evaluation", 15), ("minimize_makespan", 100)):
        trace = read_trace(public_data(f"gavel/traces/{name}.trace"))
        tidied = read_trace(public_data("traces/gavel_physical.csv"), subtrace=name)
        assert len(trace) == length
        for a, b in zip(trace, tidied, strict=True):
            assert (a.job_type, a.gpus, a.steps, a.arrival_s) == (b.job_type, b.gpus, b.steps, b.arrival_s)


def test_older_layouts_of_the_original_are_told_by_their_number_of_fields(tmp_path):
    """7 fields end in arrival and GPUs, 9 in GPUs, weight, SLO and arrival."""
    seven = read(tmp_path, "lm\tpython x\t-n\t1\t500\t60.5\t4\n").jobs[0]
    nine = read(tmp_path, "lm\tpython x\t-n\t1\t500\t4\t1\t-1.000000\t60.5\n").jobs[0]
    assert seven == nine == TraceJob(id="0", arrival_s=60.5, job_type="lm", gpus=4, steps=500.0)


def test_one_of_several_traces_is_chosen():
    """By name; all together in order of arrival with `*`; without a choice the names are listed."""
    path = public_data("traces/gavel_msr.csv")
    one = read_trace(path, subtrace="11cb48")
    every = read_trace(path, subtrace="*")
    assert (len(one), {job.tenant for job in one}) == (2000, {"11cb48"})
    assert (len(every), len({job.tenant for job in every}), every.notes) == (8931, 8, ())
    with pytest.raises(TraceError, match="subtrace: the file holds 8: 103959, 11cb48,"):
        read_trace(path)
    with pytest.raises(TraceError, match="did you mean '11cb48'"):
        read_trace(path, subtrace="11cb")


def test_which_trace_is_meant_comes_before_what_is_wrong_with_a_line(tmp_path):
    """Another one may be without fault. In a file that holds one, the line is what counts."""
    head = "subtrace,job_id,arrival_s,duration_s,num_gpus,job_type\n"
    wrong, right = "one,a,0,10,3,lm\n", "two,a,0,10,1,lm\n"
    for repair in (False, True):
        with pytest.raises(TraceError, match="the file holds 2: one, two"):
            read(tmp_path, head + wrong + right, throughputs=small(), repair=repair)
    with pytest.raises(TraceError, match=r"'lm' runs on .* GPUs?, not 3"):
        read(tmp_path, head + wrong, throughputs=small())


def test_packed_traces_and_their_deadlines_are_read():
    """Strict deadlines count from arrival; best effort has none; several GPUs stay what they are."""
    trace = read_trace(public_data("traces/chronus_philly_mix1.csv.gz"))
    assert len(trace) == 30756
    assert sum(job.deadline_s is not None for job in trace) == 21600
    assert trace.jobs[0].deadline_s == 21540


def test_a_published_trace_is_made_to_fit_a_table():
    """Unknown models and widths become known ones, always the same, and the notes say how many."""
    path = public_data("traces/muri_trace1.csv")
    with pytest.raises(TraceError, match=r":2: job_type: 'dqn' is not in the throughput table"):
        read_trace(path, throughputs=published())
    trace = read_trace(path, throughputs=published(), repair=True)
    assert trace == read_trace(path, throughputs=published(), repair=True)
    assert all(published().reference_rate(job.job_type, job.gpus) > 0 for job in trace)
    assert trace.notes == (
        "job types of the table put in place of unknown ones: 1494",
        "steps taken as duration times the rate on the reference type: 1494",
        "widths changed to ones that the table has: 65",
    )


# -------------------------------------------------------------------------------------- what cannot be right


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("a,nan,lm,1,5,", ":2: arrival_s: 'nan' is not a number"),
        ("a,inf,lm,1,5,", ":2: arrival_s: 'inf' is not a number"),
        ("a,-3,lm,1,5,", ":2: arrival_s: is -3.0; give seconds, 0 to 1e+10"),
        ("a,soon,lm,1,5,", ":2: arrival_s: 'soon' is not a number"),
        ("a,,lm,1,5,", ":2: arrival_s: is empty"),
        (",0,lm,1,5,", ":2: id: is empty"),
        ("a,0,,1,5,", ":2: job_type: is empty; name it"),
        ("a,0,lm,0,5,", ":2: gpus: is 0"),
        ("a,0,lm,-2,5,", ":2: gpus:"),
        ("a,0,lm,,5,", ":2: gpus: is empty"),
        ("a,0,lm,99999999999,5,", ":2: gpus:"),
        ("a,0,lm,1,0,", ":2: steps: is 0.0; give a number, or leave it empty"),
        ("a,0,lm,1,1e999,", ":2: steps: '1e999' is not a number"),
        ("a,0,lm,1,5,-1", ":2: duration_s: is -1.0"),
        ("a\tb,0,lm,1,5,", ":2: id: 'a\\tb' has control characters"),
        ("a,0,lm,1,5,,,", ":2: 8 fields where the table has 6"),
        ("a,0,lm", ":2: 3 fields where the table has 6; the line was cut off"),
        ('a,0,"lm,1,5,', ": is not CSV: unexpected end of data"),
        ('a,0,"l"m,1,5,', ":2: is not CSV"),
        ("a,0," + "x" * 200_000 + ",1,5,", ":2: is not CSV: field larger than field limit"),
    ],
)
@pytest.mark.parametrize("repair", [False, True])
def test_a_line_that_cannot_be_right_is_refused_even_with_repair(tmp_path, line, said, repair):
    """File, line, field, what is wrong, what to do."""
    text = HEADER + line + "\nb,9,lm,1,5,\n"
    if '"lm,' in line:
        said = ":3" + said
    found = refusal(tmp_path, text, repair=repair)
    assert found.startswith(said)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"", ": is empty"),
        (b" \r\n \n", ": is empty"),
        (b"\x89PNG\r\n\x1a\n\xff\xfe", ":1: is not text in UTF-8"),
        (b"id\0,arrival_s", ":1: holds NUL bytes"),
        (b"\x1f\x8b\x08\x00garbage", ": cannot be read"),
        (gzip.compress(b"id,arrival_s\n" * 99, mtime=0)[:-9], ": cannot be read"),
        (b"hello world\n", ": is not a trace: the first line is neither a header nor a job"),
        (b"id,arrival,job_type,gpus\n", ":1: 'arrival': unknown column; did you mean 'arrival_s'?"),
        (b"id,arrival_s,gpus\n", ":1: job_type: column is missing"),
        (b"id,arrival_s,job_type,gpus,gpus\n", ":1: gpus: column appears twice"),
        (b"lm\tx\t-n\t1\t5\t0\n", ":1: 6 fields; lines of a .trace file have 10, 9 or 7"),
        (b"lm\tx\t-n\t1\t5\t0\t1\nlm\tx\t-n\t1\n", ":2: 4 fields where the table has 7"),
        (b"lm\tx\t-n\t1\tnan\t0\t1\n", ":1: total_steps: 'nan' is not a number"),
        (b"lm\tx\t-n\t1\t5\t0\t\n", ":1: scale_factor: is empty"),
    ],
)
def test_a_file_that_cannot_be_right_is_refused(tmp_path, text, said):
    """Empty, binary, cut off, or of another kind."""
    assert refusal(tmp_path, text).startswith(said)


def test_a_missing_file_is_named(tmp_path):
    """No traceback for a mistyped path, or for a folder."""
    with pytest.raises(TraceError, match=r"none\.csv: cannot be read: No such file"):
        read_trace(tmp_path / "none.csv")
    with pytest.raises(TraceError, match="cannot be read: Is a directory"):
        read_trace(tmp_path)


def test_a_file_without_a_last_line_end_may_be_cut_off(tmp_path):
    """Nobody can tell within a number; the notes say so."""
    assert "no line end" in read(tmp_path, HEADER + "a,0,lm,1,5,1").notes[0]


def test_the_documented_example_is_a_trace(tmp_path):
    """And fits the table that Gavel brings along; the documented refusal is the real one."""
    doc = (PROJECT / "docs" / "trace-format.md").read_text(encoding="utf-8")
    example = re.search(r"((?:    .*,.*\n){3})", doc)[0].replace("    ", "")
    assert len(read(tmp_path, example, throughputs=default_throughputs())) == 2
    said = re.search(r"jobs\.csv:17(.*)", doc)[1]
    assert refusal(tmp_path, HEADER + "\n" * 15 + "a,nan,lm,1,5,\n") == ":17" + said


def test_other_line_ends_marks_and_spaces_do_no_harm(tmp_path):
    """CRLF, a byte order mark, empty lines, spaces around cells, no last line end."""
    wanted = (TraceJob(id="a", arrival_s=0.0, job_type="lm", gpus=1, steps=5.0),)
    plain = HEADER + "a,0,lm,1,5,\n"
    assert read(tmp_path, plain).jobs == wanted
    assert read(tmp_path, b"\xef\xbb\xbf" + plain.encode()).jobs == wanted
    assert read(tmp_path, plain.replace("\n", "\r\n\r\n")).jobs == wanted
    assert read(tmp_path, plain.replace("arrival_s", '"arrival_s"').replace("lm", '"lm"')).jobs == wanted
    assert read(tmp_path, HEADER + " a , 0 , lm , 1 , 5 ,").jobs == wanted
    assert read(tmp_path, gzip.compress(plain.encode())).jobs == wanted


# ------------------------------------------------------------------------------------------ what is mended


@pytest.mark.parametrize(
    ("lines", "said", "mended", "note"),
    [
        (
            "a,5,lm,1,5,\nb,3,lm,1,5,\n",
            ":3: arrival_s: 3 is before the line above; sort the lines, or read it with repair=True",
            [("b", 3.0), ("a", 5.0)],
            "jobs put in order of arrival: 1",
        ),
        (
            "a,0,lm,1,5,\na,1,lm,1,5,\na,2,lm,1,5,\n",
            ":3: id: 'a' is already the id of line 2",
            [("a", 0.0), ("a#2", 1.0), ("a#3", 2.0)],
            "ids that came again given a number: 2",
        ),
        (
            "a,0,lm,2.0,5,\n",
            ":2: gpus: 2.0 is not written as a whole number",
            [("a", 0.0)],
            "gpus rounded up to whole ones: 1",
        ),
        (
            "a,0,lm,1,5,\nb,0,l\n",
            ":3: 3 fields where the table has 6; the line was cut off",
            [("a", 0.0)],
            "last line left out: it was cut off: 1",
        ),
    ],
)
def test_sloppiness_is_refused_or_mended_and_counted(tmp_path, lines, said, mended, note):
    """Without `repair` it is refused and says so; with it, the trace says what was done."""
    assert refusal(tmp_path, HEADER + lines).startswith(said)
    trace = read(tmp_path, HEADER + lines, repair=True)
    assert [(job.id, job.arrival_s) for job in trace] == mended
    assert trace.notes == (note,)


@pytest.mark.parametrize(
    ("line", "said", "mended", "note"),
    [
        (
            "a,0,lm,1,,100",
            ":2: steps: are missing",
            ("lm", 1, 400.0),
            "steps taken as duration times the rate on the reference type: 1",
        ),
        (
            "a,0,lm,8,5,",
            ":2: gpus: 'lm' runs on 1, 2 GPUs, not 8",
            ("lm", 2, 5.0),
            "widths changed to ones that the table has: 1",
        ),
        (
            "a,0,lmm,2,5,",
            ":2: job_type: 'lmm' is not in the throughput table; did you mean 'lm'?",
            ("lm", 2, 5.0),
            "job types of the table put in place of unknown ones: 1",
        ),
        (
            "a,0,,2,5,",
            ":2: job_type: '' is not in the throughput table; name it",
            ("lm", 2, 5.0),
            "job types of the table put in place of unknown ones: 1",
        ),
    ],
)
def test_a_trace_is_made_to_fit_a_throughput_table(tmp_path, line, said, mended, note):
    """Given a table, what it does not know is refused, or mended and counted."""
    text = HEADER + line + "\n"
    assert refusal(tmp_path, text, throughputs=small()).startswith(said)
    trace = read(tmp_path, text, throughputs=small(), repair=True)
    assert [(job.job_type, job.gpus, job.steps) for job in trace] == [mended]
    assert trace.notes == (note,)


def test_without_a_table_nothing_is_made_up(tmp_path):
    """A duration without steps stays one, even with repair: there is nothing to take steps from."""
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
def test_whatever_bytes_come_in_only_trace_errors_come_out(tmp_path, data, repair, throughputs):
    """A trace, or a refusal that says why: nothing else."""
    file = tmp_path / "fuzzed"
    file.write_bytes(data)
    with suppress(TraceError):
        assert isinstance(read_trace(file, repair=repair, throughputs=throughputs), Trace)
