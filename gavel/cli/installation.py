"""The extras of Gavel that are installed, and whether Python imports our top-level modules from our folder.

Commands import the modules that they need when they run. `fault_of_import` turns a failed import into a message with
the command that installs the missing extra. At its head this file imports only `gavel`: another package may hide our
other modules, and this file reports that.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import gavel
from gavel.cli.faults import Fault

OUR_MODULES = ("gavel", "planner", "policies", "protos", "scheduler", "traces", "worker_agent")


def has(extra: str) -> bool:
    """Return whether every module of an extra is installed, without importing any."""
    from protos.extras import EXTRAS

    return all(importlib.util.find_spec(module) is not None for module in EXTRAS[extra])


def require(extra: str, needed_by: str) -> None:
    """Refuse an option or a command whose extra is missing, before any work is done."""
    if not has(extra):
        from protos.extras import install_command

        raise Fault(
            f"{needed_by} needs the extra '{extra}', which is not installed: {install_command(extra)}"
        )


def fault_of_import(error: ImportError) -> Fault | None:
    """Return the fault to show for a failed import; None if no missing extra or foreign module is the cause."""
    if foreign := foreign_modules():
        return Fault(f"{next(iter(foreign.values()))}; see `gavel doctor`")
    from protos.extras import missing_extra

    line = missing_extra(error)
    return Fault(line) if line else None


def foreign_modules() -> dict[str, str]:
    """Return, by name, the problem of each of our modules that Python does not import from our folder."""
    problems = {}
    for name in OUR_MODULES:
        own, actual = _our_folder() / name, _import_path(name)
        if actual is None:
            problems[name] = f"Gavel's module '{name}' is not installed"
        elif actual != own:
            problems[name] = f"the module '{name}' comes from {actual}, which is not Gavel's {own}"
    return problems


def overwritten_modules() -> dict[str, str]:
    """Return, by module, the name of another distribution that has written files into one of our modules."""
    from importlib import metadata

    from protos.extras import DISTRIBUTION

    owners = metadata.packages_distributions()
    return {
        name: other
        for name in OUR_MODULES
        for other in set(owners.get(name, ())) - {DISTRIBUTION}
        if any(file.parts[0] == name for file in metadata.files(other) or ())
    }


def import_ours_first() -> None:
    """Make later imports find our modules before foreign modules of the same name."""
    sys.path.insert(0, str(_our_folder()))


def _our_folder() -> Path:
    return Path(gavel.__file__).resolve().parents[1]


def _import_path(name: str) -> Path | None:
    """Return the folder, or the single file, that Python would import a module from."""
    spec = importlib.util.find_spec(name)
    if spec is None:
        return None
    return Path([*(spec.submodule_search_locations or ()), spec.origin or ""][0]).resolve()
