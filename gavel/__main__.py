"""`python -m gavel` is the `gavel` command."""

import sys


def run() -> None:
    """Run the command; Ctrl-C during its import prints one line, not a traceback."""
    try:
        from gavel.cli.main import main
    except KeyboardInterrupt:
        sys.stderr.write("gavel: interrupted\n")
        sys.exit(130)
    main(prog_name="gavel")


if __name__ == "__main__":
    run()
