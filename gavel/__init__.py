"""Gavel's face for people: the command line, the client and what a training script imports.

Nothing is imported here before it is asked for, so that a training script pays for nothing that it does not use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gavel.client import AsyncClient, Client, GavelError, JobFilter, JobSpec

__version__ = "0.1.0"
__all__ = ["AsyncClient", "Client", "GavelError", "JobFilter", "JobSpec", "__version__"]


def __getattr__(name: str) -> Any:
    """The client, when somebody wants it."""
    if name not in __all__:
        raise AttributeError(f"module 'gavel' has no attribute '{name}'")
    import gavel.client

    return getattr(gavel.client, name)
