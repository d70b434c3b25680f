"""Prepare the run directory of an order for its shim: account, secrets, work directory, devices.

If the job is at fault, a ValueError is raised, whose one line becomes the last line of the job's log.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import msgspec

from worker_agent.core.messages import Launch, Order
from worker_agent.node import mps as sharing
from worker_agent.node.node_cache import NodeCache
from worker_agent.node.packages import Packages
from worker_agent.node.secrets import read_secrets
from worker_agent.node.users import Account, UserError, Users
from worker_agent.runs.launch import PLAN, LaunchError, NodeFacts, image_store, launch_of, start_file
from worker_agent.runs.rendezvous import Rendezvous
from worker_agent.runs.runtimes import installed
from worker_agent.shim.run_directory import RunDirectory, directory_name


class Workshop(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of this node that are needed to start jobs."""

    node: NodeFacts
    users: Users
    packages: Packages
    mps: sharing.MpsDaemons
    # The directory of secrets; None if the node has none.
    secrets: Path | None = None
    # The cache of training data; None if the node has none.
    cache: NodeCache | None = None

    def account(self, order: Order) -> Account:
        """Return the account for a job; raise LaunchError if the job must not run here."""
        try:
            return self.users.account(order.user)
        except UserError as error:
            raise LaunchError(str(error)) from error

    def missing_package(self, order: Order) -> str | None:
        """Return the digest of the package that must be fetched first; None if there is none."""
        upload = launch_of(order).upload
        return upload if upload and not self.packages.has(upload) else None

    def prepare(
        self, directory: RunDirectory, order: Order, rendezvous: Rendezvous | None, without_mps: bool
    ) -> dict[str, Any]:
        """Fill the directory of a run, and return the content of its start.json.

        `rendezvous`: None for a part of a gang, which gets it with go.json. `without_mps`: whether a job that is
        already on these GPUs runs without MPS.
        """
        launch = launch_of(order)
        if self.node.devices and max(order.gpus, default=0) >= len(self.node.devices):
            raise LaunchError(
                f"the order is for GPU {max(order.gpus)}, but this node has {len(self.node.devices)}"
            )
        account = self.account(order)
        secrets = read_secrets(self._secrets_of(account), launch.env_from)
        work = None
        if launch.upload:
            work = directory.path / "work"
            self.packages.check_out(launch.upload, work, account.uid, account.gid)
        self._make_checkpoint_directory(launch, order, account)
        if launch.container:
            _make_own(image_store(self.node, account), account)
        if order.plan:
            plan = directory.path / PLAN
            plan.write_text(order.plan, encoding="utf-8")
            # Whatever the agent's umask, the job's user reads it.
            plan.chmod(0o644)
        sharing_env, notes = self._share(order, account, without_mps)
        return start_file(
            order,
            launch,
            self.node,
            account,
            rendezvous,
            run_dir=directory.path,
            secrets=secrets,
            work=work,
            node_env=sharing_env | self._cache_env(account),
            runtimes=installed(self.node.environ.get("PATH")) if launch.container else None,
        ) | {"notes": notes}

    def _secrets_of(self, account: Account) -> Path | None:
        """Return the directory of secrets for a job: the submitting user's own if jobs run as their users."""
        if self.secrets is None or account.uid is None:
            return self.secrets
        return self.secrets / directory_name(account.name)

    def _make_checkpoint_directory(self, launch: Launch, order: Order, account: Account) -> None:
        """Make the checkpoint directory of a job, unless the user named one."""
        # If the user named one, the shim's child makes it, with the user's rights.
        if launch.checkpoint_dir:
            return
        path = self.node.checkpoints / directory_name(order.job)
        _make_own(path, account)

    def _cache_env(self, account: Account) -> dict[str, str]:
        return {} if self.cache is None else {"GAVEL_CACHE": str(self.cache.directory(account))}

    def sharing_note(self, order: Order) -> str:
        """Return the line to write into the log of a running job that another job joins on its GPUs."""
        return sharing.decide(
            packed=True,
            devices=self._devices(order),
            daemon=self.mps.daemon,
            without_mps=not self.mps.serves(order.lease),
        ).note

    def _devices(self, order: Order) -> list[str]:
        return [self.node.devices[gpu] for gpu in order.gpus] if self.node.devices else []

    def _share(self, order: Order, account: Account, without_mps: bool) -> tuple[dict[str, str], list[str]]:
        """Return the variables and the log lines for sharing the GPUs."""
        devices = self._devices(order)
        decision = sharing.decide(
            packed=order.packed, devices=devices, daemon=self.mps.daemon, without_mps=without_mps
        )
        if decision.by_mps:
            try:
                return self.mps.join(order.lease, devices, account), [decision.note]
            except (OSError, subprocess.SubprocessError) as error:
                return {}, [f"another job is on the same GPUs, in time slices: {error}"]
        return {}, [decision.note] if decision.note else []


def _make_own(path: Path, account: Account) -> None:
    """Make a directory that belongs to the account of a job."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    if account.uid is not None and path.stat().st_uid != account.uid:
        os.chown(path, account.uid, -1 if account.gid is None else account.gid, follow_symlinks=False)
