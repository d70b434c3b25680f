"""Errors of a simulation as messages of one line, with the option or the file and line at fault."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from gavel.cli.faults import Fault
from gavel.cli.simulation.options import option_of
from policies.errors import PolicyError
from protos.files.settings import ConfigError
from scheduler.journal.errors import JournalError
from scheduler.model.errors import InvalidSpec
from traces.errors import TraceError
from traces.intake import REPAIR
from traces.readers.importers import SUBTRACE
from traces.readers.throughput_csv import MEASURED

# Advice from `traces` names arguments of Python functions; users of the command line need the option instead.
OPTION_FOR_ARGUMENT = {REPAIR: "--repair", SUBTRACE: "--subtrace NAME", MEASURED: "--measured NAME"}


@contextmanager
def refusals_as_faults() -> Iterator[None]:
    """Turn errors of the scheduler, the policies and the traces in this block into a `Fault`."""
    try:
        yield
    except InvalidSpec as error:
        raise Fault(f"{option_of(error.field)}: {error.problem}") from None
    except TraceError as error:
        text = str(error)
        for argument, option in OPTION_FOR_ARGUMENT.items():
            text = text.replace(argument, option)
        raise Fault(text) from None
    except (PolicyError, JournalError, ConfigError) as error:
        raise Fault(str(error)) from None
