"""Exit codes in words."""

from __future__ import annotations

import signal


def exit_words(code: int) -> str:
    """Describe an exit code. Negative codes are signals, and so are codes above 128 from a shell."""
    number = -code if code < 0 else code - 128
    try:
        name = signal.Signals(number).name
    except ValueError:  # not a named signal
        return f"exited with code {code}"
    often = " (often: out of memory)" if number == signal.SIGKILL else ""
    return f"was killed by {name}{often}" if code < 0 else f"exited with code {code}: {name}{often}"
