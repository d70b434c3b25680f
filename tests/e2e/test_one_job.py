"""From a submission to a log that can be read: every part of the live service, as its own process."""

from __future__ import annotations

import os
import signal

from protos.gavel.v1 import jobs_pb2
from tests.e2e.service import Service, until

FAST = ("scheduler.round_s=15", "agents.report_interval_s=1")
COUNT = """
import os, time
for number in range(400):
    print("line", number, os.getpid())
    if os.path.exists({stop!r}): break
    time.sleep(0.05)
"""


def test_a_job_is_submitted_runs_completes_and_its_log_is_read(tmp_path):
    """One job on one agent: completed, with what it printed and where it ran, also after it has ended."""
    with Service(tmp_path, *FAST) as service:
        service.agent("n1")
        job = service.submit("import os; print('hello from', os.environ['GAVEL_JOB_ID'])", name="hello")
        assert service.log(job, follow=True) == f"hello from {job}\n"
        ended = service.ended(job)
        assert (ended.state, ended.attempt, ended.preemptions) == (jobs_pb2.JOB_STATE_COMPLETED, 1, 0)
        chunk = next(service.chunks(job))
        assert (chunk.node, chunk.rank, chunk.attempt, chunk.offset) == ("n1", 0, 1, 0)


def test_a_job_that_fails_is_tried_again_and_its_last_lines_stay(tmp_path):
    """One retry, then failed: with its exit code, its last lines, and both attempts in the log."""
    with Service(tmp_path, *FAST) as service:
        service.agent("n1")
        job = service.submit("import sys; print('no such file'); sys.exit(3)", retries=1)
        ended = service.ended(job)
        assert (ended.state, ended.exit_code, ended.failures) == (jobs_pb2.JOB_STATE_FAILED, 3, 2)
        assert ended.last_lines == "no such file\n"
        assert service.log(job) == "no such file\n" * 2
        notices = [chunk.notice for chunk in service.chunks(job) if chunk.notice]
        assert notices == ["attempt 2 starts on n1"]


def test_a_gang_over_two_agents_starts_together_and_survives_both_ends_being_killed(tmp_path):
    """Two ranks on two nodes meet; kill -9 of an agent and of the daemon stop neither of them."""
    stop = tmp_path / "stop"
    with Service(tmp_path, *FAST) as service:
        service.agent("n1")
        service.agent("n2")
        job = service.submit(COUNT.format(stop=str(stop)), gpus=2)
        service.runs(job)
        until(lambda: {chunk.rank for chunk in service.chunks(job) if chunk.data} == {0, 1})
        pids = {chunk.node: chunk.data.split()[2] for chunk in service.chunks(job)}
        service.agents["n2"].kill()
        service.agents["n2"].wait()
        service.daemon.send_signal(signal.SIGKILL)
        service.daemon.wait()
        service.agent("n2")
        service.start()
        until(lambda: service.said("n2").count("linked to the scheduler") == 2)
        stop.touch()
        ended = service.ended(job)
        assert (ended.state, ended.attempt, ended.node_failures) == (jobs_pb2.JOB_STATE_COMPLETED, 1, 0)
        after = {chunk.node: chunk.data.split()[-1] for chunk in service.chunks(job)}
        assert after == pids


def test_an_agent_that_is_told_to_stop_leaves_its_jobs_running(tmp_path):
    """SIGTERM: the agent goes at once and says so, the job goes on, and the next agent reports its end."""
    stop = tmp_path / "stop"
    with Service(tmp_path, *FAST) as service:
        agent = service.agent("n1")
        job = service.submit(COUNT.format(stop=str(stop)))
        service.runs(job)
        until(lambda: "line 3" in service.log(job))
        pid = int(service.log(job).split()[2])
        agent.terminate()
        assert agent.wait(10) == 0
        assert "1 job goes on" in service.said("n1")
        os.kill(pid, 0)
        service.agent("n1")
        until(lambda: service.said("n1").count("linked to the scheduler") == 2)
        stop.touch()
        assert service.ended(job).attempt == 1


def test_an_agent_that_drains_waits_for_its_jobs(tmp_path):
    """--drain-on-stop: nothing new, and it goes when the last job has ended."""
    stop = tmp_path / "stop"
    with Service(tmp_path, *FAST) as service:
        agent = service.agent("n1", "v100=1", "--drain-on-stop")
        job = service.submit(COUNT.format(stop=str(stop)))
        service.runs(job)
        until(lambda: "line 3" in service.log(job))
        agent.terminate()
        until(lambda: "when the jobs here have ended" in service.said("n1"))
        assert agent.poll() is None
        stop.touch()
        assert agent.wait(20) == 0
        assert service.ended(job).state == jobs_pb2.JOB_STATE_COMPLETED


def test_an_agent_under_a_name_that_is_taken_says_what_to_do_and_ends(tmp_path):
    """The second agent of a name is sent away: exit status 1, with the remedy."""
    with Service(tmp_path, *FAST) as service:
        service.agent("n1")
        until(lambda: "linked to the scheduler" in service.said("n1"))
        (tmp_path / "elsewhere").mkdir()
        other = service.agent("n1", "v100=1", "--state-dir", str(tmp_path / "elsewhere"))
        assert other.wait(20) == 1
        assert "give this one a name of its own (--name)" in service.said("n1")
