"""The end of a job, on the daemon of the fixture `live`."""

from scheduler.core.messages import Exit
from tests.support.live_thread import LiveThread


def finish(
    live: LiveThread, job: str, outcome: str = "finished", code: int = 0, last_lines: str = ""
) -> None:
    """Run the job on n1 and let it end with this outcome and exit code."""
    lease = live.do(live.daemon.run_job(job))
    live.do(live.daemon.report("n1", exits=(Exit(lease, outcome, 100.0, 100.0, 5.0, 6.0, code, last_lines),)))
