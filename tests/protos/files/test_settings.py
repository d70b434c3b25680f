"""Settings files: their meaning, and the one line that reports a fault."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any

import msgspec
import pytest

from protos.files.example import example_settings
from protos.files.settings import ConfigError, Override, environment, read_settings
from scheduler.live.config import DaemonConfig, daemon_config
from scheduler.model.errors import InvalidSpec
from scheduler.model.settings import Settings, TenantSpec
from tests.support.wording import Wording
from worker_agent.config import AgentConfig


def load(folder: Path, text: str, name: str = "cluster.toml") -> Settings:
    """Write the text to a file and read the settings in it."""
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return read_settings(Settings, path)


TOML = """
policy = "min_cost"
round_s = 120        # a whole number is a number
speed.v100 = 2.0

[[tenants]]
name = "research"
weight = 3.0

[[tenants]]
name = "product"
policy = "fifo"
"""
YAML = """
policy: min_cost
round_s: 1.2e2
speed: {v100: 2}
tenants:
  - name: research
    weight: 3
  - {name: product, policy: fifo}
"""
TITLE = "Settings of something"
EXPECTED = Settings(
    policy="min_cost",
    round_s=120.0,
    speed={"v100": 2.0},
    tenants=(TenantSpec(name="research", weight=3.0), TenantSpec(name="product", policy="fifo")),
)


@pytest.mark.parametrize(("name", "text"), [("c.toml", TOML), ("c.yaml", YAML), ("c.yml", YAML)])
def test_both_formats_mean_the_same(tmp_path: Path, name: str, text: str) -> None:
    """A file in TOML and one in YAML give the same settings."""
    assert load(tmp_path, text, name) == EXPECTED


@pytest.mark.parametrize("name", ["c.toml", "c.yaml"])
@pytest.mark.parametrize("text", ["", "# nothing but a comment\n", "\ufeff"])
def test_an_empty_file_gives_the_defaults(tmp_path: Path, name: str, text: str) -> None:
    """Settings that a file leaves out have their defaults."""
    assert load(tmp_path, text, name) == Settings()


# The file, its text, and the setting and line that the error names.
FAULTS = [
    ("a.toml", "\nround_secs = 3", "round_secs", 2),
    ("a.yaml", "policy: x\nround_secs: 3", "round_secs", 2),
    ("a.toml", "round_s = 'fast'", "round_s", 1),
    ("a.yaml", "round_s: no", "round_s", 1),
    ("a.yaml", "round_s: 1:30", "round_s", 1),
    ("a.yaml", "round_s:", "round_s", 1),
    ("a.toml", "seed = 1.5", "seed", 1),
    ("a.toml", "learn_rates = 1", "learn_rates", 1),
    ("a.toml", "policy = true", "policy", 1),
    ("a.toml", "preemptions_max = []", "preemptions_max", 1),
    ("a.toml", "tenants = 1", "tenants", 1),
    ("a.toml", "[speed]\nv100 = 1\nk80 = 'slow'", "speed.k80", 3),
    ("a.toml", "round_s = 1\nround_s = 2", "", 2),
    ("a.yaml", "round_s: 1\nround_s: 2", "round_s", 2),
    ("a.yaml", "speed:\n  v100: 1\n  v100: 2", "speed.v100", 3),
    (
        "a.toml",
        "[[tenants]]\nname='a'\n[[tenants]]\nname='b'\nwieght=3",
        "tenants[1].wieght",
        5,
    ),
    ("a.toml", "tenants = [\n  {name = 'a'},\n  {weight = 2.0},\n]", "tenants[1].name", 1),
    ("a.yaml", "tenants:\n- name: a\n- weight: 3", "tenants[1].name", 3),
    ("a.toml", "\nround_s = -1.0", "round_s", 2),
    ("a.toml", "speed = {v100 = 0}", "speed.v100", 1),
    ("a.toml", "half_life_rounds = inf", "half_life_rounds", 1),
    ("a.yaml", "half_life_rounds: .inf", "half_life_rounds", 1),
    ("a.toml", "stay_rounds = nan", "stay_rounds", 1),
    ("a.yaml", "- 1", "", 1),
    ("a.yaml", "seed: 1\n---\nseed: 2", "", 3),
    ("a.toml", "seed = 1\nround_s =", "", 2),
    pytest.param("a.toml", "seed = " + "9" * 5000, "", None, id="5000 digits"),
    pytest.param("a.toml", "seed = " + "[" * 5000, "", None, id="5000 brackets"),
    ("a.yaml", "seed: [1", "", 2),
    ("a.yaml", "speed: &a {v100: 1}\ntenants: *a", "", 2),
    ("a.yaml", "[" * 100, "", 1),
]


# The message of the standard library's parser, which differs between versions of Python.
PARSER = re.compile(r"(?<=not valid TOML: ).*")


@pytest.mark.parametrize(("name", "text", "field", "line"), FAULTS)
def test_a_fault_is_one_line_with_its_place(
    tmp_path: Path, name: str, text: str, field: str, line: int | None, wording: Wording
) -> None:
    """The error has file, line, key, value and remedy."""
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, text, name)
    message = str(caught.value)
    assert (caught.value.field, caught.value.line) == (field, line)
    assert message.startswith(f"{name}, line {line}: {field}" if line else f"{name}: ")
    assert "\n" not in message
    wording(message, fault=PARSER)


def test_numbers_may_be_written_with_a_point(tmp_path: Path) -> None:
    """3.0 is accepted as a whole number."""
    assert load(tmp_path, "reserve_after = 3.0").reserve_after == 3


def test_a_fault_between_settings_names_both(tmp_path: Path, wording: Wording) -> None:
    """If two settings contradict each other, the error has both with their values."""
    with pytest.raises(
        ConfigError, match=r"^cluster\.toml, line 2: solve_lead_s .*7\.0.*round_s.*5\.0"
    ) as caught:
        load(tmp_path, "round_s = 5\nsolve_lead_s = 7")
    wording(caught.value)


def test_a_fault_can_be_handled_by_a_program(tmp_path: Path) -> None:
    """The error has the field and the line as attributes."""
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, "seed = 1\n[[tenants]]\nname = 1")
    assert (caught.value.field, caught.value.line) == ("tenants[0].name", 3)


def test_files_that_cannot_be_read(tmp_path: Path, wording: Wording) -> None:
    """A file that is missing, too large, or not text is refused with its name."""
    with pytest.raises(ConfigError, match=r"none\.toml: ") as caught:
        read_settings(Settings, tmp_path / "none.toml")
    wording(caught.value, folder=tmp_path)
    with pytest.raises(ConfigError, match=r"cluster\.toml.*1024 KiB") as caught:
        load(tmp_path, "#" * 2**21)
    wording(caught.value, folder=tmp_path)
    (tmp_path / "bad.toml").write_bytes(b"seed = 1\npolicy = '\xff'")
    with pytest.raises(ConfigError, match=r"bad\.toml, line 2: ") as caught:
        read_settings(Settings, tmp_path / "bad.toml")
    wording(caught.value, folder=tmp_path)


# --------------------------------------------------------------------------------------------- the example


def test_the_example_is_the_defaults(tmp_path: Path) -> None:
    """The example changes no setting, neither unedited nor with every default uncommented."""
    example = example_settings(Settings, TITLE)
    assert load(tmp_path, example) == Settings()
    uncommented = re.sub(r"^#(?=\w)", "", example, flags=re.MULTILINE)
    assert uncommented.count("\n#") < example.count("\n#")
    assert load(tmp_path, uncommented) == Settings()


def test_the_example_names_every_setting() -> None:
    """The example has every key, those of tenants included."""
    example = example_settings(Settings, TITLE)
    for model in (Settings, TenantSpec):
        for field in msgspec.structs.fields(model):
            assert re.search(rf"^#.*\b{field.name}\b", example, flags=re.MULTILINE), field.name


def test_the_example_explains_the_settings() -> None:
    """The annotation of a field is the comment above its key."""
    example = example_settings(Outer, TITLE)
    assert example.startswith(f"# {TITLE}.")
    assert '# What it is called.\n#name = "x"\n' in example


@pytest.mark.parametrize("model", [DaemonConfig, AgentConfig])
def test_every_key_of_an_example_is_explained(model: type[msgspec.Struct]) -> None:
    """In the examples of daemon and agent every key has a comment above it or beside it."""
    lines = example_settings(model, TITLE, "OUR_").splitlines()
    keys = [at for at, line in enumerate(lines) if re.match(r"#\w+ = |# \w+ (= |is not set)", line)]
    bare = [
        lines[at]
        for at in keys
        if not re.match(r"# [^\[]", lines[at - 1]) and not re.search(r"  # \w", lines[at])
    ]
    assert len(keys) > 15
    assert bare == []


@pytest.mark.parametrize(
    ("variable", "suggestion"),
    [
        ("GAVEL_SERVE_SCHEDULER_ROUND_S", "GAVEL_SERVE_SCHEDULER__ROUND_S"),
        ("GAVEL_SERVE_ROUND_S", "GAVEL_SERVE_SCHEDULER__ROUND_S"),
        ("GAVEL_SERVE_KEEPING_COMPACT", "GAVEL_SERVE_KEEPING__COMPACT"),
        ("GAVEL_SERVE_LISTN", '"listen"'),
    ],
)
def test_a_variable_with_too_few_underscores_leads_to_the_right_one(
    variable: str, suggestion: str, wording: Wording
) -> None:
    """A natural slip in a variable's name is answered with the right name; the example shows the form."""
    with pytest.raises(ConfigError) as caught:
        daemon_config(None, {}, (), {variable: "5"})
    assert str(caught.value).startswith(f"{variable}: ")
    assert str(caught.value).endswith(f" {suggestion}?")
    wording(caught.value)
    assert (
        "GAVEL_SERVE_SCHEDULER__"
        in example_settings(DaemonConfig, TITLE, "GAVEL_SERVE_").partition("\n\n")[0]
    )


def test_the_example_shows_a_tenant(tmp_path: Path) -> None:
    """The commented entry of a list is valid after its blanks are filled in."""
    example = example_settings(Settings, TITLE)
    entry = re.sub(r"^# ", "", example[example.index("# [[tenants]]") :], flags=re.MULTILINE)
    entry = entry.replace("…", "research")
    assert load(tmp_path, entry) == Settings(tenants=(TenantSpec(name="research"),))


class Inner(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A table in a table."""

    size: Annotated[int, "How large it is."] = 1

    def checked(self) -> Inner:
        """Refuse sizes below 1."""
        if self.size < 1:
            raise InvalidSpec("size", f"is {self.size}, must be at least 1")
        return self


class Outer(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A file with a table."""

    name: Annotated[str, "What it is called."] = "x"
    on: bool = False
    kinds: dict[str, float] = {}
    inner: Annotated[Inner, "What is inside."] = Inner()


def test_variables_and_options_override_the_file(tmp_path: Path) -> None:
    """The last override wins, keys with dots reach into tables, and plain words need no quotes."""
    path = tmp_path / "c.toml"
    path.write_text('name = "file"\n[inner]\nsize = 5\n')
    overrides = (
        *environment("OUR_", {"OUR_INNER__SIZE": "7", "OUR_NAME": "env", "HOME": "x"}),
        Override("name", "127.0.0.1:80", "--name"),
        Override("kinds.v100", "2.5", "--set kinds.v100"),
    )
    assert read_settings(Outer, path, overrides) == Outer(
        name="127.0.0.1:80", kinds={"v100": 2.5}, inner=Inner(size=7)
    )
    assert read_settings(Outer, None, ()) == Outer()


@pytest.mark.parametrize(
    ("override", "field"),
    [
        (Override("inner.size", "0", "OUR_INNER__SIZE"), "inner.size"),
        (Override("inner.size", "big", "--size"), "inner.size"),
        (Override("inner.sise", "3", "--set"), "inner.sise"),
        (Override("size", "3", "--set"), "size"),
        (Override("outer.size", "3", "--set"), "outer"),
        (Override("name.first", "a", "--set"), "name.first"),
        (Override("inner", "3", "OUR_INNER"), "inner"),
        (Override("on", "yes", "--on"), "on"),
        (Override("name", 3, "--name"), "name"),
    ],
)
def test_a_fault_names_its_source(tmp_path: Path, override: Override, field: str, wording: Wording) -> None:
    """An error about an override names the option or variable, and not a line of the file."""
    path = tmp_path / "c.toml"
    path.write_text('name = "file"\n')
    with pytest.raises(ConfigError) as caught:
        read_settings(Outer, path, (override,))
    assert caught.value.field == field
    assert str(caught.value).startswith(f"{override.source}: {field} ")
    wording(caught.value)


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("name", "7", "7"),
        ("name", "true", "true"),
        ("name", '"quoted"', "quoted"),
        ("name", "a = 1", "a = 1"),
        ("name", "9" * 5000, "9" * 5000),
        ("on", "1", True),
        ("on", "TRUE", True),
        ("on", "false", False),
        ("kinds", "{a = 1}", {"a": 1.0}),
        ("inner.size", "4", 4),
    ],
)
def test_a_text_is_read_as_its_settings_type(key: str, text: str, value: Any) -> None:
    """Values of variables and options need no quotes for text, and may be TOML."""
    outer: Any = read_settings(Outer, None, (Override(key, text, "--set"),))
    for part in key.split("."):
        outer = getattr(outer, part)
    assert outer == value


def test_a_fault_in_a_table_names_its_line(tmp_path: Path) -> None:
    """A check of an inner model names the line in the outer file."""
    path = tmp_path / "c.toml"
    path.write_text("[inner]\n\nsize = -3\n")
    with pytest.raises(ConfigError) as caught:
        read_settings(Outer, path)
    assert (caught.value.field, caught.value.line) == ("inner.size", 3)


def test_tables_come_last_in_the_example(tmp_path: Path) -> None:
    """Tables have their headers, so that uncommenting a key sets it; the unedited example sets nothing."""
    path = tmp_path / "c.toml"
    path.write_text(example_settings(Outer, TITLE))
    assert read_settings(Outer, path) == Outer()
    path.write_text(example_settings(Outer, TITLE).replace("#size = 1", "size = 9"))
    assert read_settings(Outer, path).inner.size == 9


@pytest.mark.parametrize(
    ("text", "leads"),
    [
        ("", (10.0, 2.0)),
        ("round_s = 12", (10.0, 2.0)),
        ("round_s = 4", (1.0, 0.5)),
        ("round_s = 10", (2.5, 2.0)),
        ("solve_lead_s = 1", (1.0, 0.5)),
        ("solve_lead_s = 3", (3.0, 2.0)),
        ("round_s = 8\nplan_lead_s = 3", (3.0, 3.0)),
    ],
)
def test_leads_fit_a_short_round_unless_they_are_given(
    tmp_path: Path, text: str, leads: tuple[float, float]
) -> None:
    """A short round shortens the default leads that do not fit it; leads that are set, or that fit, are kept."""
    settings = load(tmp_path, text)
    assert (settings.solve_lead_s, settings.plan_lead_s) == leads
    inner = daemon_config(None, {}, [f"scheduler.{line.replace(' ', '')}" for line in text.splitlines()], {})
    assert inner.scheduler == settings


def test_leads_that_are_given_are_not_changed(wording: Wording) -> None:
    """Leads that do not fit are refused; an error about a default names no option and no line."""
    with pytest.raises(
        ConfigError, match=r"^--set scheduler\.solve_lead_s: scheduler\.solve_lead_s .*5\.0"
    ) as caught:
        daemon_config(None, {"scheduler.round_s": "4"}, ("scheduler.solve_lead_s=5",), {})
    wording(caught.value)
    with pytest.raises(ConfigError, match=r"^scheduler\.solve_lead_s .*round_s.*4\.0") as caught:
        daemon_config(None, {"scheduler.round_s": "4"}, ("scheduler.plan_lead_s=5",), {})
    wording(caught.value)


def test_an_address_for_agents_needs_tls(wording: Wording) -> None:
    """Without TLS agents use the users' address, so an address of their own would be ignored; it is refused."""
    with pytest.raises(ConfigError, match=r"^--set agents_listen: .*\btls\b.*auth = 'tokens'") as caught:
        daemon_config(None, {}, ("agents_listen=127.0.0.1:7271",), {})
    wording(caught.value)
