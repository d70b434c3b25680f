"""The `gavel` command: the table of commands, and how mistakes in a command line are reported.

COMMANDS is a table, so that `gavel --help` and the completion of a command's name import no command. A command's file
imports nothing slow at its top, either (no gRPC, rich or numpy), so that `gavel submit --help` answers at once.
"""

from __future__ import annotations

import errno
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import click

import gavel
from gavel.cli.faults import INTERRUPTED, WORDS, Fault, reason

# For each title, its commands: the name, the module and the short help.
COMMANDS: dict[str, dict[str, tuple[str, str]]] = {
    "Jobs": {
        "submit": ("jobs.submit", "Submit the jobs in job files, or a job that runs COMMAND."),
        "run": ("jobs.run", "Run a command on GPUs of the cluster, at your terminal."),
        "attach": ("jobs.attach", "Attach your terminal to an interactive job."),
        "shell": ("jobs.attach", "Open a shell beside a running job."),
        "queue": (
            "jobs.queue",
            "List jobs: by default your unfinished ones and, below, those that ended last.",
        ),
        "show": ("jobs.show", "Show everything about jobs: their description and their history."),
        "logs": ("jobs.logs", "Show the output of a job."),
        "fetch": ("jobs.fetch", "Fetch files of a job from its nodes: by default its `outputs`."),
        "explain": ("jobs.explain", "Why is my job waiting? Or why does it run where it runs?"),
        "probe": (
            "jobs.probe",
            "Measure how long the script of a job waits for its data, and what would make it faster.",
        ),
        "wait": ("jobs.wait", "Wait until jobs have ended."),
        "cancel": ("jobs.change", "Stop jobs for good."),
        "hold": ("jobs.change", "Keep jobs waiting until they are released; running jobs save and stop."),
        "release": ("jobs.change", "Let held jobs run again."),
        "update": ("jobs.update", "Change jobs that were submitted earlier."),
        "requeue": ("jobs.change", "Stop running jobs and put them back into the queue."),
    },
    "Cluster": {
        "status": ("cluster.status", "Show the state of the scheduler, and your user and role."),
        "top": ("cluster.top", "Watch nodes, running jobs and the queue; q ends it."),
        "nodes": ("cluster.nodes", "List nodes; for nodes given by name, each GPU, too."),
        "drain": ("cluster.change_nodes", "Let nodes finish their jobs, and give them no new ones."),
        "resume": ("cluster.change_nodes", "Let drained nodes take jobs again."),
        "remove": (
            "cluster.change_nodes",
            "Remove nodes from the cluster for good.",
        ),
        "usage": ("cluster.usage", "Show GPU time and cost."),
        "shares": (
            "cluster.shares",
            "Show the GPU time that tenants were due by the policy, and what they received, by worker type.",
        ),
        "matrix": (
            "cluster.matrix",
            "Show the recent GPU time that jobs were due by the policy and received, by worker type.",
        ),
        "rounds": (
            "cluster.rounds",
            "List rounds, the latest first: how many leases began, continued and ended, and how long the solver took.",
        ),
        "leases": (
            "cluster.leases",
            "List leases: those that have not ended, then the others, the latest end first.",
        ),
        "policy": ("cluster.policy", "Show or set the policy that divides the cluster."),
        "tenant": ("cluster.tenant", "List, show, set and remove tenants, with their weights and quotas."),
        "notify": (
            "cluster.notify",
            "List and test the channels to which the scheduler sends notifications.",
        ),
        "token": ("cluster.token", "Create, list and revoke tokens and the join tokens of nodes."),
        "login": (
            "cluster.login",
            "Store a cluster under NAME, with your token for it, and use it from now on.",
        ),
        "context": ("cluster.login", "List the stored clusters, or use NAME from now on."),
    },
    "Policies and simulation": {
        "policies": ("policies.list", "List the policies: what each optimises and which facts it needs."),
        "allocate": ("policies.allocate", "Divide the cluster in PROBLEM among its jobs."),
        "simulate": (
            "simulation.simulate",
            "Run jobs through the scheduler in virtual time, and print the figures.",
        ),
        "sweep": (
            "simulation.sweep",
            "Simulate every combination of policies, rates, seeds and clusters.",
        ),
        "replay": ("simulation.replay", "Simulate the history in JOURNAL again, under another policy."),
        "compare": (
            "simulation.compare",
            "Compare two results of `gavel simulate --json`, with the ratio of B to A.",
        ),
        "plan": ("plans.plan", "Show how to split a model over GPUs."),
        "profile": ("plans.profile", "Measure the layers of a model, for `gavel plan`."),
        "generate": (
            "simulation.generate",
            "Write a trace to OUTPUT: a .csv in our format, or a .trace in the format of the original Gavel.",
        ),
    },
    "Service": {
        "up": ("service.up", "Start a scheduler and a few agents on this machine, to try Gavel."),
        "init": (
            "service.init",
            "Set up a scheduler in DIR: keys, certificates, the first admin's token, and a settings file.",
        ),
        "serve": ("service.serve", "Run a scheduler until it is stopped."),
        "web": (
            "service.web",
            "Serve the page of a cluster until stopped: queue, jobs, nodes, rounds, shares, usage; and REST under /v1.",
        ),
        "agent": ("service.agent", "Run the agent of a node until it is stopped."),
        "config": ("service.config", "Show or check the settings of a scheduler."),
        "doctor": (
            "service.doctor",
            "Check this machine and the scheduler for problems, and suggest remedies.",
        ),
        "backup": (
            "service.backup",
            "Write journal, tokens and keys to ARCHIVE, a .tar.gz file that only you can read.",
        ),
        "restore": (
            "service.backup",
            "Restore a data directory from ARCHIVE: completely, or not at all if the archive is damaged.",
        ),
        "fsck": (
            "service.fsck",
            "Check a data directory: its files, its records, and whether its history breaks a guarantee.",
        ),
        "completion": (
            "cluster.completion",
            "Print the script for completion in a SHELL: add `source <(gavel completion bash)` to ~/.bashrc.",
        ),
    },
}


class _CommandTable(Mapping[str, click.Command]):
    """The commands by name; each is imported on first use."""

    def __init__(self) -> None:
        self._modules = {name: module for group in COMMANDS.values() for name, (module, _) in group.items()}

    def __getitem__(self, name: str) -> click.Command:
        command: click.Command = getattr(import_module(f"gavel.cli.{self._modules[name]}"), name)
        return command

    def __iter__(self) -> Iterator[str]:
        return iter(self._modules)

    def __len__(self) -> int:
        return len(self._modules)


@contextmanager
def _errors_as_faults() -> Iterator[None]:
    """Turn click's messages about options, Ctrl-C and failed writes into a `Fault`."""
    try:
        yield
    except click.exceptions.NoArgsIsHelpError:
        raise
    except click.UsageError as error:
        from gavel.cli.io.other_schedulers import our_equivalent

        message = our_equivalent(error) or error.format_message().replace("\n\t", " ")
        raise Fault(message[:1].lower() + message[1:], context=error.ctx) from None
    except (KeyboardInterrupt, click.Abort):
        raise Fault("interrupted", INTERRUPTED) from None
    except OSError as error:
        # If the reader of a pipe has gone, as with `| head`, click ends the command quietly.
        if error.errno == errno.EPIPE:
            raise
        raise Fault(f"cannot write: {reason(error)}") from None
    except ImportError as error:
        from gavel.cli.installation import fault_of_import

        fault = fault_of_import(error)
        if fault is None:
            raise
        raise fault from None


class _Commands(click.Group):
    """The commands of the table; each fault, even of an option, is one line."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.commands = _CommandTable()  # type: ignore[assignment]

    def make_context(self, *args: Any, **options: Any) -> click.Context:
        with _errors_as_faults():
            return super().make_context(*args, **options)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read `gavel help submit` as `gavel submit --help`."""
        return super().parse_args(ctx, [*args[1:], "--help"] if args[:1] == ["help"] else args)

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        """Keep the words after a command that does not exist, such as `job submit`, for the answer to it."""
        ctx.meta[WORDS] = tuple(args)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands by subject, each with its whole first sentence."""
        for title, commands in COMMANDS.items():
            with formatter.section(title):
                formatter.write_dl([(name, summary) for name, (_, summary) in commands.items()])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command; in completion, None for one that cannot be imported, because nobody waits for a message."""
        try:
            return super().get_command(ctx, cmd_name)
        except ImportError:
            if ctx.resilient_parsing:
                return None
            raise

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[Any]:
        """Complete a command's name from the table."""
        from click.shell_completion import CompletionItem

        listed = {name: summary for group in COMMANDS.values() for name, (_, summary) in group.items()}
        matching = [name for name in sorted(listed) if name.startswith(incomplete)]
        return [
            *(CompletionItem(name, help=listed[name]) for name in matching),
            *click.Command.shell_complete(self, ctx, incomplete),
        ]

    def invoke(self, context: click.Context) -> Any:
        with _errors_as_faults():
            return super().invoke(context)


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(gavel.__version__, prog_name="gavel")
def main() -> None:
    """Share a cluster of different GPUs among jobs, by how fast each job runs on each type.

    To try it on this machine: `gavel up`, and in another terminal `gavel submit -- COMMAND`. For an existing cluster:
    `gavel login`. docs/cli.md describes everything.
    """
    # A terminal that lacks a character gets a substitute, not a traceback.
    for stream, substitute in ((sys.stdout, "replace"), (sys.stderr, "backslashreplace")):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors=substitute)
