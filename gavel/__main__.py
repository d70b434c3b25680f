"""`python -m gavel` is the `gavel` command."""

import atexit
import os
import signal
import sys
import threading
from types import FrameType


def run() -> None:
    """Run the command; Ctrl-C during its import prints one line, not a traceback."""
    ending = _Ending()
    # Such functions run in reverse order: this one, registered first, runs after those of all modules.
    atexit.register(ending.skip_teardown)
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupt)
    try:
        from gavel.cli.main import main
    except KeyboardInterrupt:
        sys.stderr.write("gavel: interrupted\n")
        sys.exit(130)
    try:
        main(prog_name="gavel")
    except SystemExit as ended:
        ending.code = ended.code
        raise


def _interrupt(number: int, frame: FrameType | None) -> None:
    """Raise KeyboardInterrupt, after which nobody wants to read how the interrupted call ended in threads of gRPC."""
    threading.excepthook = lambda _: None
    signal.default_int_handler(number, frame)


class _Ending:
    """The end of the process: no thread of Python runs any more, and the functions of all modules at exit have run."""

    # What the command passed to `sys.exit`. Python itself handles what is no number, and any other end.
    code: object = "unknown"

    def skip_teardown(self) -> None:
        """End the process without freeing every object first, which would take a tenth of a short command's time."""
        if self.code is not None and not isinstance(self.code, int):
            return
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        except (OSError, ValueError):
            # Python reports what cannot be written, and exits with its own code.
            return
        os._exit(self.code or 0)


if __name__ == "__main__":
    run()
