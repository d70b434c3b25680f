"""The extras of Gavel that are installed, and whether Python imports our top-level modules from our folder.

Commands import what they need when they run. `fault_of_import` turns a failed import into a line that says what to
install. Nothing of ours is imported at the head of this file, because it is what reports that another package hides
ours.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import gavel
from gavel.cli.faults import Fault

OUR_MODULES = ("gavel", "policies", "protos", "scheduler", "traces", "worker_agent")


def has(extra: str) -> bool:
    """Return whether every module of an extra is installed; without importing them."""
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
    """Return what the user can do about a failed import; None if no missing extra or foreign module explains it."""
    if foreign := foreign_modules():
        return Fault(f"{next(iter(foreign.values()))}; see `gavel doctor`")
    from protos.extras import missing_extra

    line = missing_extra(error)
    return Fault(line) if line else None


def foreign_modules() -> dict[str, str]:
    """Return the problem of each of our modules that Python does not import from our folder, by name."""
    wrong = {}
    for name in OUR_MODULES:
        own, place = _our_folder() / name, _place(name)
        if place is None:
            wrong[name] = f"Gavel's module '{name}' is not installed"
        elif place != own:
            wrong[name] = f"the module '{name}' comes from {place}, which is not Gavel's {own}"
    return wrong


def overwritten_modules() -> dict[str, str]:
    """Return the names of other distributions that wrote into our modules, by module."""
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
    """Make imports from now on find our modules before any foreign ones of the same name."""
    sys.path.insert(0, str(_our_folder()))


def _our_folder() -> Path:
    return Path(gavel.__file__).resolve().parents[1]


def _place(name: str) -> Path | None:
    """Return the folder, or the single file, that Python would import a module from."""
    spec = importlib.util.find_spec(name)
    if spec is None:
        return None
    return Path([*(spec.submodule_search_locations or ()), spec.origin or ""][0]).resolve()
