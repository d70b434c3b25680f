"""Values of the options of `gavel plan`: the shape of a transformer, levels of machines, worker types."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from gavel.cli.faults import Fault, refusing
from gavel.cli.io.wording import file_name

if TYPE_CHECKING:
    from planner.chain import Level
    from planner.profile import Profile
    from planner.transformer import Transformer

# No profile and no graph is larger.
FILE_BYTES_MAX = 64 << 20
# The keys of --gpt, and the fields of a transformer that they set.
SHAPE = {
    "layers": "layers",
    "hidden": "hidden",
    "heads": "heads",
    "seq": "sequence",
    "vocab": "vocabulary",
}


class Shape(click.ParamType):
    """The shape of a transformer: `layers=24,hidden=2304,heads=24,seq=2048,vocab=51200`."""

    name = "shape"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> dict[str, int]:
        """Return the numbers by field; all of them have to be given."""
        if isinstance(value, dict):
            return value
        numbers: dict[str, int] = {}
        for entry in value.split(","):
            key, _, text = (part.strip() for part in entry.partition("="))
            if key in SHAPE and SHAPE[key] in numbers:
                self.fail(f"{key} is given twice", param, ctx)
            if key not in SHAPE:
                self.fail(f"'{entry}' is not one of {', '.join(f'{key}=N' for key in SHAPE)}", param, ctx)
            if not (text.isascii() and text.isdigit() and 0 < len(text) < 10):
                self.fail(f"{key}: '{text[:20]}' is not a whole number", param, ctx)
            numbers[SHAPE[key]] = int(text)
        missing = [key for key, field in SHAPE.items() if field not in numbers]
        if missing:
            self.fail(f"{', '.join(missing)} missing", param, ctx)
        return numbers


class LevelValue(click.ParamType):
    """A level of machines and its bandwidth: `4:1e9`."""

    name = "level"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Level:
        """Return the level."""
        from planner.chain import Level
        from planner.errors import BadCluster

        if isinstance(value, Level):
            return value
        machines, _, bandwidth = value.partition(":")
        try:
            return Level(int(machines), float(bandwidth))
        except BadCluster as error:
            self.fail(error.message, param, ctx)
        except (ValueError, OverflowError):
            self.fail(f"'{value}' is not MACHINES:BYTES_PER_SECOND, such as 4:1e9", param, ctx)


def transformer_of(shape: Mapping[str, int]) -> Transformer:
    """Return the transformer of this shape."""
    from planner.errors import BadProfile
    from planner.transformer import Transformer

    try:
        return Transformer(**shape)
    except BadProfile as error:
        raise Fault(f"--gpt: {error}") from None


def read_text(path: str) -> str:
    """Return the text of a file that a user named."""
    with refusing(OSError, ValueError, subject=file_name(path)), open(path, "rb") as file:
        content = file.read(FILE_BYTES_MAX + 1)
    if len(content) > FILE_BYTES_MAX:
        raise Fault(f"{file_name(path)}: has more than {FILE_BYTES_MAX >> 20} MiB")
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        raise Fault(f"{file_name(path)}: is not UTF-8 text") from None


def profile_of(path: str) -> Profile:
    """Return the profile in a file."""
    import json

    from planner.errors import PlanError
    from planner.profile_form import read_profile

    text, name = read_text(path), file_name(path)
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        hint = "for a graph of PipeDream give --as pipedream"
        if name.endswith(".py"):
            hint = f"a script has to be profiled first: `gavel profile {name}`"
        raise Fault(f"{name}: is not JSON ({error}); {hint}") from None
    with refusing(PlanError):
        return read_profile(document, name)


def require_options(
    options: dict[str, Any], needed: dict[str, str], foreign: dict[str, str], subject: str
) -> None:
    """Refuse missing options, and options that have no effect; both by field, with the name of the option."""
    for field, option in needed.items():
        if options[field] in (None, ()):
            raise Fault(f"{subject} needs {option}")
    for field, option in foreign.items():
        if options[field] not in (None, (), False):
            raise Fault(f"{option} has no effect with {subject}")
