"""The child of a shim becomes the user, goes to the work directory and executes the command, or reports the fault.

Standard library only.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
from collections.abc import Callable, Collection, Iterator
from typing import Any, NoReturn

from worker_agent.shim import control_groups, process_tree

# The exit status with which shells report a command that they cannot run.
COULD_NOT_START = 127


class CannotStart(Exception):
    """The command, its directory or its user is wrong; the message has the reason."""


def turn_into(
    start: dict[str, Any],
    argv: list[str],
    env: dict[str, str],
    *,
    shim: int,
    out: int,
    trouble_in: int,
    default: Collection[signal.Signals],
    entrance: int | None = None,
    cpu_entrance: int | None = None,
    stdin: int | None = None,
    tty: bool = False,
    rehearse: bool = False,
    instead: Callable[[], object] | None = None,
) -> NoReturn:
    """Turn this process into the leader of a new session, and execute the command there.

    A fault is written to `trouble_in`, which is closed in any case. Options:
    - `default`: signals that the shim blocks; the command gets their default actions;
    - `entrance`: a descriptor for entering the run's control group. The child enters before it checks that the shim
      lives, so no process of the job can be started outside the group;
    - `cpu_entrance`: the same for its control group of CPUs, without which the job runs, too;
    - `stdin`: the command's input, by default empty; `tty`: it is a terminal, which the command's session controls;
    - `rehearse`: do everything except executing the command;
    - `instead`: a function to call, as the user, in place of the command. It may take long; its errors go to the log.
    """
    try:
        _enter_groups(entrance, cpu_entrance)
        os.setsid()
        reset_oom_score()
        drop_to(start.get("uid"), start.get("gid"), start.get("groups") or [])
        process_tree.die_with_parent(shim)
        os.dup2(os.open(os.devnull, os.O_RDONLY) if stdin is None else stdin, 0)
        if tty:
            _control_terminal()
        os.dup2(out, 1)
        os.dup2(out, 2)
        os.umask(0o022)
        _go_to(start["cwd"], env.get("GAVEL_CHECKPOINT_DIR", ""))
        for signum in (signal.SIGPIPE, signal.SIGXFSZ, *default):
            signal.signal(signum, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        if instead is None and (container := start.get("container")):
            from worker_agent.shim.containers import enter

            argv, env = enter(container, argv, env, start["cwd"])
        if rehearse:
            _look_for(argv[0], env)
            os._exit(0)
        if instead is not None:
            os.close(trouble_in)
            _call(instead)
        _execute(argv, env)
    except BaseException as trouble:
        os.write(trouble_in, str(trouble).encode()[:4096] or b"it cannot be started")
    finally:
        os._exit(COULD_NOT_START)


def _enter_groups(entrance: int | None, cpu_entrance: int | None) -> None:
    if entrance is not None:
        control_groups.enter(entrance)
    if cpu_entrance is not None:
        # The kernel refuses processes with real-time priority.
        with contextlib.suppress(OSError):
            control_groups.enter(cpu_entrance)


def _go_to(directory: str, checkpoints: str) -> None:
    """Change to the work directory, after making the directory of checkpoints, if there is one."""
    if checkpoints:
        with _cannot_start_on_error(f"checkpoint directory {checkpoints}"):
            os.makedirs(checkpoints, exist_ok=True)
    with _cannot_start_on_error(f"working directory {directory}"):
        os.chdir(directory)


def _control_terminal() -> None:
    """Make standard input the controlling terminal of this session, so that Ctrl-C reaches its processes."""
    # Only terminals need these modules, whose import would delay the start of every job.
    import fcntl
    import termios

    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def reset_oom_score(path: str = "/proc/self/oom_score_adj") -> None:
    """Give up the agent's protection from the OOM killer, which its jobs must not inherit."""
    with contextlib.suppress(OSError, ValueError):
        with open(path) as file:
            is_protected = int(file.read()) < 0
        if is_protected:
            with open(path, "w") as file:
                file.write("0")


@contextlib.contextmanager
def _cannot_start_on_error(step: str) -> Iterator[None]:
    """Raise CannotStart if the block raises OSError. `step`: the beginning of the message."""
    try:
        yield
    except OSError as error:
        raise CannotStart(f"{step}: {error.strerror}") from error


def _call(act: Callable[[], object]) -> NoReturn:
    """Exit with 0 after a successful call; with 1, and a line on stderr, after an OSError."""
    try:
        act()
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        os.write(2, f"[gavel: {where}{error.strerror or error}]\n".encode())
        os._exit(1)
    os._exit(0)


def drop_to(uid: int | None, gid: int | None, groups: list[int]) -> None:
    """Become the user irrevocably, and check that the rights are gone."""
    if uid is None:
        return
    if uid <= 0 or gid is None or gid <= 0:
        raise CannotStart(f"a job must not run as uid {uid}, gid {gid}")
    with _cannot_start_on_error(f"cannot become uid {uid}, gid {gid}"):
        os.setgroups(groups)
        os.setresgid(gid, gid, gid)
        os.setresuid(uid, uid, uid)
    identity = os.getresuid(), os.getresgid(), set(os.getgroups())
    if identity != ((uid,) * 3, (gid,) * 3, set(groups)):
        raise CannotStart(f"after becoming uid {uid}, gid {gid}, the process is {identity}")


def _look_for(command: str, env: dict[str, str]) -> None:
    """Raise CannotStart if execvpe would not find the command."""
    folders = [""] if "/" in command else os.get_exec_path(env)
    if not any(os.access(os.path.join(folder, command), os.X_OK) for folder in folders):
        missing = "/" not in command or not os.path.exists(command)
        raise _cannot_run(command, errno.ENOENT if missing else errno.EACCES)


def _cannot_run(command: str, number: int) -> CannotStart:
    where = " (looked for in PATH)" if number == errno.ENOENT and "/" not in command else ""
    return CannotStart(f"cannot run {command}: {os.strerror(number)}{where}")


def _execute(argv: list[str], env: dict[str, str]) -> NoReturn:
    try:
        os.execvpe(argv[0], argv, env)  # noqa: S606
    except OSError as error:
        raise _cannot_run(argv[0], error.errno or 0) from error
