"""Commands that call the daemon of the fixture `live`, and the end of its jobs."""

from scheduler.core.messages import Exit
from tests.support.live_thread import LiveThread


def command_with(module: str, constant: str, value: float) -> str:
    """Return a program of Python that is the command, but for the value of one constant."""
    return f"import {module} as module; module.{constant} = {value}\nfrom gavel.__main__ import run; run()\n"


def finish(
    live: LiveThread, job: str, outcome: str = "finished", code: int = 0, last_lines: str = ""
) -> None:
    """Run the job on n1 and let it end with this outcome and exit code."""
    lease = live.do(live.daemon.run_job(job))
    live.do(live.daemon.report("n1", exits=(Exit(lease, outcome, 100.0, 100.0, 5.0, 6.0, code, last_lines),)))
