"""`python -m gavel` is the `gavel` command."""

import sys


def run() -> None:
    """The command; Ctrl-C while even that is still being read is one line, too."""
    try:
        from gavel.cli.main import main
    except KeyboardInterrupt:
        sys.stderr.write("gavel: interrupted\n")
        sys.exit(130)
    main(prog_name="gavel")


if __name__ == "__main__":
    run()
