"""A process that stops, or is killed, after any of its calls of the system."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any

import pytest


class Stopped(BaseException):
    """The process goes no further."""


def stopped_after(calls: int, act: Callable[[], Any], functions: Iterable[tuple[ModuleType, str]]) -> bool:
    """Act, but stop after so many calls of these functions; return whether there were so many.

    Only calls by this thread count: threads that earlier tests have left behind call the system, too.
    """
    left, its_thread = calls, threading.get_ident()

    def stopping(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **words: Any) -> Any:
            nonlocal left
            result = function(*arguments, **words)
            if threading.get_ident() == its_thread:
                left -= 1
                if left == 0:
                    raise Stopped
            return result

        return call

    with pytest.MonkeyPatch.context() as patch:
        for module, name in functions:
            patch.setattr(module, name, stopping(getattr(module, name)))
        try:
            act()
        except Stopped:
            return True
    return False
