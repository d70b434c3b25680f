"""The extras of the distribution: the modules that each installs, and the advice if one is missing."""

from __future__ import annotations

DISTRIBUTION = "gavel-scheduler"
EXTRAS = {
    "server": ("numpy", "scipy", "cvxpy", "clarabel", "highspy", "grpc_health", "grpc_reflection"),
    "plots": ("matplotlib",),
    "plan": ("numpy",),
    "web": ("starlette", "uvicorn", "h11"),
    "frames": ("pandas",),
    "ray": ("ray",),
}


def install_command(extra: str) -> str:
    """Return the command that installs an extra."""
    return f"pip install '{DISTRIBUTION}[{extra}]'"


def missing_extra(error: ImportError) -> str:
    """Return a message with the missing module and the command that installs it; empty if no extra contains it."""
    missing = (error.name or "").partition(".")[0]
    for extra, modules in EXTRAS.items():
        if missing in modules:
            return f"{missing} is not installed: {install_command(extra)}"
    return ""
