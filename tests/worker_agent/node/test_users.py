"""The user of a job: never root by accident, and never with more rights than the submitting user's."""

from __future__ import annotations

import asyncio
import os
import pwd
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from tests.support.wording import Wording
from tests.worker_agent.live_agents import LiveAgent, job
from tests.worker_agent.shim_runs import in_time, shim_run
from worker_agent.node.users import Account, UserError, Users, check_agent_user


def entry(
    name: str = "ada", uid: int = 1001, gid: int = 1001, login_shell: str = "/bin/bash"
) -> pwd.struct_passwd:
    """Return a line of the user table."""
    return pwd.struct_passwd((name, "x", uid, gid, "", f"/homes/{name}", login_shell))


def users(known: pwd.struct_passwd | None) -> Users:
    """Return the users of a root agent on a node that has one user, or none."""

    def look_up(name: str) -> pwd.struct_passwd:
        if known is None:
            raise KeyError(name)
        return known

    return Users(look_up=look_up, euid=0)


def test_a_root_agent_switches_to_the_submitting_user() -> None:
    """The job gets that user's groups, and none of root's."""
    assert users(entry()).account("ada") == Account(
        name="ada", home=Path("/homes/ada"), login_shell="/bin/bash", uid=1001, gid=1001, groups=(1001,)
    )


@pytest.mark.parametrize(
    ("known", "user"),
    [
        (entry(), ""),
        (None, "eve"),
        (entry("toor", 0), "toor"),
        (entry("wheel", 1001, 0), "wheel"),
        (entry("daemon", 999), "daemon"),
        (entry("bob", login_shell="/usr/sbin/nologin"), "bob"),
    ],
    ids=["no user", "unknown", "root", "group of root", "system user", "locked"],
)
def test_a_user_who_must_not_run_jobs_is_refused(
    known: pwd.struct_passwd | None, user: str, wording: Wording
) -> None:
    """Refused are root under any name, system users, locked users, unknown users, and a job without a user."""
    with pytest.raises(UserError, match=user or None) as refused:
        users(known).account(user)
    wording(refused.value)


def test_in_single_user_mode_jobs_run_as_the_agents_user(wording: Wording) -> None:
    """All jobs run as the agent's user, whoever submitted them, and the agent's log line names that user."""
    single = Users(single_user=True)
    assert single.account("anybody").uid is None
    wording(single.mode, user=pwd.getpwuid(os.geteuid()).pw_name)
    assert Users(euid=1001).switching is False


def test_no_agent_is_root_by_accident(wording: Wording) -> None:
    """An agent may be root only with --single-user or --switch-users, and --switch-users requires root."""
    with pytest.raises(UserError, match=r"--switch-users.*--single-user"):
        check_agent_user(single_user=False, switch_users=False, euid=0)
    with pytest.raises(UserError, match="root") as refused:
        check_agent_user(single_user=False, switch_users=True, euid=1001)
    wording(refused.value)
    check_agent_user(single_user=True, switch_users=False, euid=0)
    check_agent_user(single_user=False, switch_users=True, euid=0)
    check_agent_user(single_user=False, switch_users=False, euid=1001)


@pytest.fixture
def runs() -> Iterator[Path]:
    """A directory of runs that other users may enter but not list, like the agent's."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        path.chmod(0o711)
        yield path


SHOW = (
    "grep -E '^(Uid|Gid|Groups|CapEff|NoNewPrivs):' /proc/self/status | tr -s '\\t ' ' ';"
    "cat ../secret || echo refused; touch own && echo 'can write'"
)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_job_runs_with_the_rights_of_its_user_only(runs: Path) -> None:
    """The job has its user's ids and exactly its groups, no capability, and no way to gain one."""
    (runs / "secret").write_text("for root alone")
    (runs / "secret").chmod(0o600)
    with shim_run(runs, ["/bin/sh", "-c", SHOW], uid=54321, gid=54322, groups=[54323]) as run:
        run.ended()
        lines = dict.fromkeys(line.strip() for line in run.log().splitlines())
        assert "Uid: 54321 54321 54321 54321" in lines
        assert "Gid: 54322 54322 54322 54322" in lines
        assert "Groups: 54323" in lines
        assert "CapEff: 0000000000000000" in lines
        assert "NoNewPrivs: 1" in lines
        assert "refused" in lines
        assert "for root alone" not in run.log()
        assert "can write" in lines


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_job_cannot_prolong_its_own_lease(runs: Path) -> None:
    """The job owns its directory, but the shim ignores a lease.json that the agent did not write."""
    forge = (
        """echo '{"lease": "17", "ask_s": 1e9, "signal_s": 1e9, "kill_s": 1e9}' > own;"""
        "mv -f own lease.json && echo forged; trap '' TERM; sleep 600"
    )

    def story(within_s: float) -> bool:
        moments = (within_s, within_s, within_s)
        own = {"lease": f"{within_s}", "moments": moments, "uid": 54321, "gid": 54322}
        with shim_run(runs, ["/bin/sh", "-c", forge.replace("17", f"{within_s}")], **own) as run:
            exit = run.ended()
            assert exit["killed"] or "forged" not in run.log()
            return "forged" in run.log()

    in_time(story, first_s=1.0)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_root_agent_runs_jobs_as_their_users(runs: Path, wording: Wording) -> None:
    """A whole run: the job's directories belong to its user, it gets its own secrets, and refused users get nothing."""
    for user in ("ada", "bob"):
        (runs / "secrets" / user).mkdir(parents=True)
        (runs / "secrets" / user / "token").write_text(f"of {user}")
    script = (
        'id -u; echo "${TOKEN#of }";'
        'echo 1 > "$GAVEL_CHECKPOINT_DIR/saved" && echo 1 > own && stat -c %u . saved own;'
        'cat "$GAVEL_RUN_DIR/start.json" || echo no secrets of others;'
        'echo \'{"epoch": 1, "attempt": 1, "steps": 7, "saved": 7}\' > "$GAVEL_RUN_DIR/progress-0.json"'
    )
    launch = {"command": ["/bin/sh", "-c", script], "env_from": {"TOKEN": "secret:token"}}

    def look_up(name: str) -> pwd.struct_passwd:
        return entry(name, {"ada": 54321, "toor": 0}[name], 54322)

    async def story() -> None:
        node = LiveAgent(runs)
        workshop = msgspec.structs.replace(node.workshop, users=Users(look_up=look_up, euid=0))
        node.agent.workshop = workshop
        async with node:
            launch["workdir"] = str(runs / "checkpoints" / "job-17")
            node.desire(
                job("", launch=launch, user="ada"), job("", "18", launch=launch, user="toor", gpus=(1,))
            )
            exit = await node.exit()
            assert (exit.outcome, exit.steps) == ("finished", 7), node.log()
            lines = node.log().splitlines()
            assert lines[:2] == ["54321", "ada"]
            assert lines[2:5] == ["54321"] * 3
            assert "no secrets of others" in lines
            assert (await node.exit("18")).outcome == "failed"
            assert "'toor'" in node.log("18")
            wording(node.log("18"))

    asyncio.run(story())
