"""The extras of the distribution: the modules that each brings, and what a user does about a missing one."""

from __future__ import annotations

DISTRIBUTION = "gavel-scheduler"
EXTRAS = {
    "server": ("numpy", "scipy", "cvxpy", "clarabel", "highspy", "grpc_health", "grpc_reflection"),
    "plots": ("matplotlib",),
    "frames": ("pandas",),
    "ray": ("ray",),
}


def install_command(extra: str) -> str:
    """Return the command that installs an extra."""
    return f"pip install '{DISTRIBUTION}[{extra}]'"


def missing_extra(error: ImportError) -> str:
    """Return what is not installed, with the command that mends it; empty where no extra brings it."""
    missing = (error.name or "").partition(".")[0]
    for extra, modules in EXTRAS.items():
        if missing in modules:
            return f"{missing} is not installed: {install_command(extra)}"
    return ""
