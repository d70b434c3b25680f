"""In the child of a shim: become the user, go to the place, turn into the command; or say what is wrong with it.

Standard library only.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
from collections.abc import Callable, Collection
from typing import Any, NoReturn

from worker_agent.shim import control_groups, process_tree

COULD_NOT_START = 127  # what a shell says of a command that it cannot run


class CannotStart(Exception):
    """The command, its directory or its user are wrong."""


def turn_into(
    start: dict[str, Any],
    argv: list[str],
    env: dict[str, str],
    *,
    shim: int,
    out: int,
    said: int,
    default: Collection[signal.Signals],
    entrance: int | None = None,
    rehearse: bool = False,
    instead: Callable[[], object] | None = None,
) -> NoReturn:
    """Turn into the leader of a session of its own; `said` takes what is wrong, and is closed when nothing is.

    `default`: signals that the shim treats in its own way. `entrance`: of the run's control group; it is entered before
    the look whether the shim lives, so that nothing of the job can be started outside. `rehearse`: do all but turn
    into it. `instead`: what to do as the user in place of the command; it may take long, and what goes wrong in it
    stands in the log.
    """
    try:
        if entrance is not None:
            control_groups.enter(entrance)
        os.setsid()
        be_no_dearer_than_others()
        _drop_to(start.get("uid"), start.get("gid"), start.get("groups") or [])
        process_tree.die_with_parent(shim)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(out, 1)
        os.dup2(out, 2)
        os.umask(0o022)
        _make_directory(env.get("GAVEL_CHECKPOINT_DIR"))
        _go_to(start["cwd"])
        for signum in (signal.SIGPIPE, signal.SIGXFSZ, *default):
            signal.signal(signum, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        if rehearse:
            _look_for(argv[0], env)
            os._exit(0)
        if instead is not None:
            os.close(said)
            _do(instead)
        _execute(argv, env)
    except BaseException as trouble:
        os.write(said, str(trouble).encode()[:4096] or b"it cannot be started")
    finally:
        os._exit(COULD_NOT_START)


def be_no_dearer_than_others(score: str = "/proc/self/oom_score_adj") -> None:
    """An agent may be kept from what the kernel does for want of memory; its jobs, which want it, are not."""
    with contextlib.suppress(OSError, ValueError):
        with open(score) as file:
            dearer = int(file.read()) < 0
        if dearer:
            with open(score, "w") as file:
                file.write("0")


def _do(act: Callable[[], object]) -> NoReturn:
    try:
        act()
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        os.write(2, f"[gavel: {where}{error.strerror or error}]\n".encode())
        os._exit(1)
    os._exit(0)


def _drop_to(uid: int | None, gid: int | None, groups: list[int]) -> None:
    """Become the user, for good, and make sure of it."""
    if uid is None:
        return
    if uid <= 0 or gid is None or gid <= 0:
        raise CannotStart(f"a job may not run as uid {uid}, gid {gid}")
    try:
        os.setgroups(groups)
        os.setresgid(gid, gid, gid)
        os.setresuid(uid, uid, uid)
    except OSError as error:
        raise CannotStart(f"cannot become uid {uid}, gid {gid}: {error.strerror}") from error
    mine = os.getresuid(), os.getresgid(), set(os.getgroups())
    if mine != ((uid,) * 3, (gid,) * 3, set(groups)):
        raise CannotStart(f"after becoming uid {uid}, gid {gid}, the process is {mine}")


def _make_directory(path: str | None) -> None:
    if path:
        try:
            os.makedirs(path, exist_ok=True)
        except OSError as error:
            raise CannotStart(f"checkpoint directory {path}: {error.strerror}") from error


def _go_to(path: str) -> None:
    try:
        os.chdir(path)
    except OSError as error:
        raise CannotStart(f"working directory {path}: {error.strerror}") from error


def _look_for(command: str, env: dict[str, str]) -> None:
    """Whether there is such a command, by the rules of execvpe."""
    places = [""] if "/" in command else os.get_exec_path(env)
    if not any(os.access(os.path.join(place, command), os.X_OK) for place in places):
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
