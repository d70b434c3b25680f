"""`python -m gavel` is the `gavel` command."""

from gavel.cli import main

if __name__ == "__main__":
    main(prog_name="gavel")
