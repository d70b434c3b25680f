"""Training on data that stays where it is: ranks learn from their own data and exchange less than each gradient.

    from gavel.training.decentral import FedAvg, SkewScout

`BSP`, `FedAvg`, `Gaia` and `DGC` exchange what a step has changed; `SkewScout` chooses how much of it, by how skewed
the data is. Importing this package imports no PyTorch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gavel.training.decentral.bsp import BSP
    from gavel.training.decentral.dgc import DGC
    from gavel.training.decentral.fedavg import FedAvg
    from gavel.training.decentral.gaia import Gaia
    from gavel.training.decentral.scout import SkewScout

__all__ = ["BSP", "DGC", "FedAvg", "Gaia", "SkewScout"]

_MODULE_OF = {"BSP": "bsp", "FedAvg": "fedavg", "Gaia": "gaia", "DGC": "dgc", "SkewScout": "scout"}


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__} has no attribute {name}")
    return getattr(import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
