"""Gavel for its users: the command line, the client and the library for training scripts.

The client is imported on first use, so that a training script does not pay for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gavel.client import AsyncClient, Client, GavelError, JobFilter, JobSpec
    from gavel.plans import plan

__version__ = "0.1.0"
__all__ = ["AsyncClient", "Client", "GavelError", "JobFilter", "JobSpec", "__version__", "plan"]


def __getattr__(name: str) -> Any:
    """Import the client, or the planner, on the first use of one of its names."""
    if name not in __all__:
        raise AttributeError(f"module 'gavel' has no attribute '{name}'")
    if name == "plan":
        from gavel.plans import plan

        return plan
    import gavel.client

    return getattr(gavel.client, name)
