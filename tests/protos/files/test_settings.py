"""Settings files: what they mean, and one line about whatever is wrong with them."""

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
from worker_agent.config import AgentConfig


def load(folder: Path, text: str, name: str = "cluster.toml") -> Settings:
    """The settings in a file with this text."""
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return read_settings(Settings, path)


TOML = """
policy = "min_cost"
round_s = 120        # a whole number is a number, too
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
MEANT = Settings(
    policy="min_cost",
    round_s=120.0,
    speed={"v100": 2.0},
    tenants=(TenantSpec(name="research", weight=3.0), TenantSpec(name="product", policy="fifo")),
)


@pytest.mark.parametrize(("name", "text"), [("c.toml", TOML), ("c.yaml", YAML), ("c.yml", YAML)])
def test_both_formats_mean_the_same(tmp_path: Path, name: str, text: str) -> None:
    """TOML or YAML, the settings are the same."""
    assert load(tmp_path, text, name) == MEANT


@pytest.mark.parametrize("name", ["c.toml", "c.yaml"])
@pytest.mark.parametrize("text", ["", "# nothing but a comment\n", "\ufeff"])
def test_what_is_left_out_has_its_default(tmp_path: Path, name: str, text: str) -> None:
    """An empty file is the defaults."""
    assert load(tmp_path, text, name) == Settings()


# The file, its text, the setting and line that the error names, and a part of what it says.
FAULTS = [
    ("a.toml", "\nround_secs = 3", "round_secs", 2, 'did you mean "round_s"?'),
    ("a.yaml", "policy: x\nround_secs: 3", "round_secs", 2, 'did you mean "round_s"?'),
    ("a.toml", "round_s = 'fast'", "round_s", 1, 'is "fast"; must be a number'),
    ("a.yaml", "round_s: no", "round_s", 1, 'is "no"; must be a number'),
    ("a.yaml", "round_s: 1:30", "round_s", 1, 'is "1:30"; must be a number'),
    ("a.yaml", "round_s:", "round_s", 1, "is nothing; must be a number"),
    ("a.toml", "seed = 1.5", "seed", 1, "is 1.5; must be a whole number"),
    ("a.toml", "learn_rates = 1", "learn_rates", 1, "is 1; must be true or false"),
    ("a.toml", "policy = true", "policy", 1, "is true; must be text"),
    ("a.toml", "preemptions_max = []", "preemptions_max", 1, "is a list of 0; must be a whole number"),
    ("a.toml", "tenants = 1", "tenants", 1, "must be a list"),
    ("a.toml", "[speed]\nv100 = 1\nk80 = 'slow'", "speed.k80", 3, "must be a number"),
    ("a.toml", "round_s = 1\nround_s = 2", "", 2, "appears twice"),
    ("a.yaml", "round_s: 1\nround_s: 2", "round_s", 2, "appears twice"),
    ("a.yaml", "speed:\n  v100: 1\n  v100: 2", "speed.v100", 3, "appears twice"),
    (
        "a.toml",
        "[[tenants]]\nname='a'\n[[tenants]]\nname='b'\nwieght=3",
        "tenants[1].wieght",
        5,
        'did you mean "weight"?',
    ),
    ("a.toml", "tenants = [\n  {name = 'a'},\n  {weight = 2.0},\n]", "tenants[1].name", 1, "is missing"),
    ("a.yaml", "tenants:\n- name: a\n- weight: 3", "tenants[1].name", 3, "is missing"),
    ("a.toml", "\nround_s = -1.0", "round_s", 2, "is -1, must be between 0.001 and 10,000,000,000 s"),
    ("a.toml", "speed = {v100 = 0}", "speed.v100", 1, "is 0, must be between 1e-6 and 1,000,000"),
    ("a.toml", "half_life_rounds = inf", "half_life_rounds", 1, "is inf"),
    ("a.yaml", "half_life_rounds: .inf", "half_life_rounds", 1, "is inf"),
    ("a.toml", "stay_rounds = nan", "stay_rounds", 1, "is nan"),
    ("a.yaml", "- 1", "", 1, "must be a mapping"),
    ("a.yaml", "seed: 1\n---\nseed: 2", "", 3, "second document"),
    ("a.toml", "seed = 1\nround_s =", "", 2, "not valid TOML"),
    ("a.toml", "seed = " + "9" * 5000, "", None, "not valid TOML"),
    ("a.toml", "seed = " + "[" * 5000, "", None, "nested too deeply"),
    ("a.yaml", "seed: [1", "", 2, "not valid YAML"),
    ("a.yaml", "speed: &a {v100: 1}\ntenants: *a", "", 2, "alias"),
    ("a.yaml", "[" * 100, "", 1, "nested too deeply"),
]


@pytest.mark.parametrize(("name", "text", "field", "line", "part"), FAULTS)
def test_a_fault_is_one_line_that_says_where(
    tmp_path: Path, name: str, text: str, field: str, line: int | None, part: str
) -> None:
    """File, line, key, value, and what to do instead."""
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, text, name)
    message = str(caught.value)
    assert (caught.value.field, caught.value.line) == (field, line)
    assert message.startswith(f"{name}, line {line}: {field}" if line else f"{name}: ")
    assert part in message
    assert "\n" not in message


def test_numbers_may_be_written_with_a_point(tmp_path: Path) -> None:
    """2.0 is a whole number."""
    assert load(tmp_path, "reserve_after = 3.0").reserve_after == 3


def test_a_fault_between_settings_names_both(tmp_path: Path) -> None:
    """What a file leaves out can be at odds with what it says."""
    with pytest.raises(
        ConfigError, match=r"cluster\.toml, line 2: solve_lead_s is 7\.0, .* round_s \(5\.0\)"
    ):
        load(tmp_path, "round_s = 5\nsolve_lead_s = 7")


def test_a_fault_can_be_handled_by_a_program(tmp_path: Path) -> None:
    """The place is there in parts."""
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, "seed = 1\n[[tenants]]\nname = 1")
    assert (caught.value.field, caught.value.line) == ("tenants[0].name", 3)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    """Missing, too large, or not text: each is refused with the name of the file."""
    with pytest.raises(ConfigError, match=r"cannot read .*none\.toml: no such file or directory"):
        read_settings(Settings, tmp_path / "none.toml")
    with pytest.raises(ConfigError, match="larger than 1024 KiB"):
        load(tmp_path, "#" * 2**21)
    (tmp_path / "bad.toml").write_bytes(b"seed = 1\npolicy = '\xff'")
    with pytest.raises(ConfigError, match=r"bad\.toml, line 2: not UTF-8 text"):
        read_settings(Settings, tmp_path / "bad.toml")


# The example


def test_the_example_is_the_defaults(tmp_path: Path) -> None:
    """As it is, and with every default switched on, the example changes nothing."""
    example = example_settings(Settings, TITLE)
    assert load(tmp_path, example) == Settings()
    switched_on = re.sub(r"^#(?=\w)", "", example, flags=re.MULTILINE)
    assert switched_on.count("\n#") < example.count("\n#")
    assert load(tmp_path, switched_on) == Settings()


def test_the_example_names_every_setting() -> None:
    """Every key stands in the example, those of tenants too."""
    example = example_settings(Settings, TITLE)
    for model in (Settings, TenantSpec):
        for field in msgspec.structs.fields(model):
            assert re.search(rf"^#.*\b{field.name}\b", example, flags=re.MULTILINE), field.name


def test_the_example_says_what_settings_mean() -> None:
    """The text in the annotation of a field stands above its key."""
    example = example_settings(Outer, TITLE)
    assert example.startswith(f"# {TITLE}.")
    assert '# What it is called.\n#name = "x"\n' in example


@pytest.mark.parametrize("model", [DaemonConfig, AgentConfig])
def test_every_key_of_an_example_is_explained(model: type[msgspec.Struct]) -> None:
    """Of the daemon, of each table in it, and of an agent: a comment stands above every key, or beside it."""
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
    ("variable", "meant"),
    [
        ("GAVEL_SERVE_SCHEDULER_ROUND_S", "GAVEL_SERVE_SCHEDULER__ROUND_S"),
        ("GAVEL_SERVE_ROUND_S", "GAVEL_SERVE_SCHEDULER__ROUND_S"),
        ("GAVEL_SERVE_KEEPING_COMPACT", "GAVEL_SERVE_KEEPING__COMPACT"),
        ("GAVEL_SERVE_LISTN", '"listen"'),
    ],
)
def test_a_variable_with_too_few_underscores_leads_to_the_right_one(variable: str, meant: str) -> None:
    """What anybody would write first is answered with what to write; the example says it before."""
    with pytest.raises(ConfigError) as caught:
        daemon_config(None, {}, (), {variable: "5"})
    assert str(caught.value).startswith(f"{variable}: ")
    assert str(caught.value).endswith(f"; did you mean {meant}?")
    assert (
        "GAVEL_SERVE_SCHEDULER__"
        in example_settings(DaemonConfig, TITLE, "GAVEL_SERVE_").partition("\n\n")[0]
    )


def test_the_example_shows_a_tenant(tmp_path: Path) -> None:
    """The commented entry of a list is a valid one, once its blanks are filled in."""
    example = example_settings(Settings, TITLE)
    entry = re.sub(r"^# ", "", example[example.index("# [[tenants]]") :], flags=re.MULTILINE)
    entry = entry.replace("…", "research")
    assert load(tmp_path, entry) == Settings(tenants=(TenantSpec(name="research"),))


class Inner(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A table in a table."""

    size: Annotated[int, "How large it is."] = 1

    def checked(self) -> Inner:
        """Sizes are positive."""
        if self.size < 1:
            raise InvalidSpec("size", f"is {self.size}, must be at least 1")
        return self


class Outer(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A file with a table."""

    name: Annotated[str, "What it is called."] = "x"
    on: bool = False
    kinds: dict[str, float] = {}
    inner: Annotated[Inner, "What is inside."] = Inner()


def test_what_is_said_elsewhere_goes_over_the_file(tmp_path: Path) -> None:
    """Later words win, keys with dots reach into tables, and plain words need no quotes."""
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
    ("override", "field", "part"),
    [
        (Override("inner.size", "0", "OUR_INNER__SIZE"), "inner.size", "is 0, must be at least 1"),
        (Override("inner.size", "big", "--size"), "inner.size", 'is "big"; must be a whole number'),
        (Override("inner.sise", "3", "--set"), "inner.sise", 'did you mean "size"?'),
        (Override("size", "3", "--set"), "size", 'did you mean "inner.size"?'),
        (Override("outer.size", "3", "--set"), "outer", 'there are "name", "on", "kinds", "inner"'),
        (Override("name.first", "a", "--set"), "name.first", "name is not a table"),
        (Override("inner", "3", "OUR_INNER"), "inner", "is 3; must be a mapping"),
        (Override("on", "yes", "--on"), "on", 'is "yes"; must be true or false'),
        (Override("name", 3, "--name"), "name", "is 3; must be text"),
    ],
)
def test_a_fault_names_its_source(tmp_path: Path, override: Override, field: str, part: str) -> None:
    """The option or variable, not the file's line, when it was not the file."""
    path = tmp_path / "c.toml"
    path.write_text('name = "file"\n')
    with pytest.raises(ConfigError) as caught:
        read_settings(Outer, path, (override,))
    assert caught.value.field == field
    assert str(caught.value).startswith(f"{override.source}: {field} ")
    assert part in str(caught.value)


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
def test_a_text_means_what_its_setting_takes(key: str, text: str, value: Any) -> None:
    """Variables and options need no quotes for text, and may be TOML."""
    outer: Any = read_settings(Outer, None, (Override(key, text, "--set"),))
    for part in key.split("."):
        outer = getattr(outer, part)
    assert outer == value


def test_a_fault_in_a_table_names_its_line(tmp_path: Path) -> None:
    """Checks of an inner model name the outer file's place."""
    path = tmp_path / "c.toml"
    path.write_text("[inner]\n\nsize = -3\n")
    with pytest.raises(ConfigError) as caught:
        read_settings(Outer, path)
    assert (caught.value.field, caught.value.line) == ("inner.size", 3)


def test_tables_come_last_in_the_example(tmp_path: Path) -> None:
    """With their headers, so that taking a # away changes that key; as it stands it is the defaults."""
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
    """Who names the length of a round need not know of them; what fits stays as it is."""
    settings = load(tmp_path, text)
    assert (settings.solve_lead_s, settings.plan_lead_s) == leads
    inner = daemon_config(None, {}, [f"scheduler.{line.replace(' ', '')}" for line in text.splitlines()], {})
    assert inner.scheduler == settings


def test_leads_that_are_given_are_not_changed() -> None:
    """They are refused where they do not fit; a fault that has no option or line of its own names none."""
    with pytest.raises(
        ConfigError, match=r"^--set scheduler\.solve_lead_s: scheduler\.solve_lead_s is 5\.0, "
    ):
        daemon_config(None, {"scheduler.round_s": "4"}, ("scheduler.solve_lead_s=5",), {})
    with pytest.raises(ConfigError, match=r"^scheduler\.solve_lead_s .* below round_s \(4\.0\)$"):
        daemon_config(None, {"scheduler.round_s": "4"}, ("scheduler.plan_lead_s=5",), {})


def test_an_address_for_agents_needs_tls() -> None:
    """Without it agents link where users do: an address of their own would be passed over in silence."""
    with pytest.raises(ConfigError, match=r"^--set agents_listen: .* tls is off; .* auth = 'tokens'$"):
        daemon_config(None, {}, ("agents_listen=127.0.0.1:7271",), {})
