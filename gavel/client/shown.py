"""The base of results that notebooks show as HTML."""

from __future__ import annotations

from importlib import import_module


class Shown:
    """A result that describes itself: in a line, in full, and as HTML.

    The code for this imports the results, so it is found by name, and only when a result is shown.
    """

    __slots__ = ()

    def __repr__(self) -> str:
        return str(import_module("gavel.client.views.text").summary(self))

    def __str__(self) -> str:
        return str(import_module("gavel.client.views.text").text(self))

    def _repr_html_(self) -> str:
        return str(import_module("gavel.client.views.html").html(self))
