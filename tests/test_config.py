"""Settings files: what they mean, and one line about whatever is wrong with them."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from scheduler.config import ConfigError, Said, environment, example_config, load_config, load_settings
from scheduler.live.config import DaemonConfig, daemon_config
from scheduler.model.errors import InvalidSpec
from scheduler.model.settings import Settings, TenantSpec
from worker_agent.config import AgentConfig


def load(folder: Path, text: str, name: str = "cluster.toml") -> Settings:
    """The settings in a file with this text."""
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return load_settings(path)


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


FAULTS = [
    ("a.toml", "\nround_secs = 3", "unknown key 'round_secs' in a.toml, line 2; did you mean 'round_s'?"),
    (
        "a.yaml",
        "policy: x\nround_secs: 3",
        "unknown key 'round_secs' in a.yaml, line 2; did you mean 'round_s'?",
    ),
    ("a.toml", "round_s = 'fast'", "round_s is 'fast' in a.toml, line 1; must be a number"),
    ("a.yaml", "round_s: no", "round_s is 'no' in a.yaml, line 1; must be a number"),
    ("a.yaml", "round_s:", "round_s is empty in a.yaml, line 1; must be a number"),
    ("a.toml", "seed = 1.5", "seed is 1.5 in a.toml, line 1; must be a whole number"),
    ("a.toml", "learn_rates = 1", "learn_rates is 1 in a.toml, line 1; must be true or false"),
    ("a.toml", "policy = true", "policy is true in a.toml, line 1; must be text in quotes"),
    ("a.toml", "preemptions_max = []", "preemptions_max is [] in a.toml, line 1; must be a whole number"),
    ("a.toml", "tenants = 1", "tenants is 1 in a.toml, line 1; must be a list"),
    ("a.toml", "[speed]\nv100 = 1\nk80 = 'slow'", "speed.k80 is 'slow' in a.toml, line 3; must be a number"),
    ("a.toml", "round_s = 1\nround_s = 2", "a key or table stands twice in a.toml, line 2"),
    ("a.yaml", "round_s: 1\nround_s: 2", "key 'round_s' stands twice in a.yaml, line 2"),
    ("a.yaml", "speed:\n  v100: 1\n  v100: 2", "key 'speed.v100' stands twice in a.yaml, line 3"),
    (
        "a.toml",
        "[[tenants]]\nname='a'\n[[tenants]]\nname='b'\nwieght=3",
        "unknown key 'tenants[1].wieght' in a.toml, line 5; did you mean 'weight'?",
    ),
    (
        "a.toml",
        "tenants = [\n  {name = 'a'},\n  {weight = 2.0},\n]",
        "tenants[1] has no 'name' in a.toml, line 1; it must be text in quotes",
    ),
    (
        "a.yaml",
        "tenants:\n- name: a\n- weight: 3",
        "tenants[1] has no 'name' in a.yaml, line 3; it must be text in quotes",
    ),
    (
        "a.toml",
        "\nround_s = -1.0",
        "round_s is -1, must be between 0.001 and 10,000,000,000 s in a.toml, line 2",
    ),
    (
        "a.toml",
        "speed = {v100 = 0}",
        "speed.v100 is 0, must be between 1e-6 and 1,000,000 in a.toml, line 1",
    ),
    (
        "a.toml",
        "half_life_rounds = inf",
        "half_life_rounds is inf, must be between 0.001 and 1,000,000 rounds in a.toml, line 1",
    ),
    (
        "a.toml",
        "stay_rounds = nan",
        "stay_rounds is nan, must be between 0 and 1,000,000 rounds in a.toml, line 1",
    ),
    ("a.yaml", "- 1", "the file is [1] in a.yaml; must be a table of keys and values"),
    ("a.toml", "seed = 1\nround_s =", "not valid TOML: invalid value, in a.toml, line 2"),
    ("a.yaml", "seed: [1", "not valid YAML: expected ',' or ']', but got '<stream end>', in a.yaml, line 1"),
    ("a.yaml", "speed: &a {v100: 1}\ntenants: *a", "an alias (*) stands in a.yaml, line 2; write it out"),
    ("a.yaml", "[" * 100, "nested too deeply, in a.yaml, line 1"),
]


@pytest.mark.parametrize(("name", "text", "message"), FAULTS)
def test_a_fault_is_one_line_that_says_where(tmp_path: Path, name: str, text: str, message: str) -> None:
    """File, line, key, value, and what to do instead."""
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, text, name)
    assert str(caught.value) == message


def test_a_fault_between_settings_names_both(tmp_path: Path) -> None:
    """What a file leaves out can be at odds with what it says."""
    with pytest.raises(
        ConfigError, match=r"solve_lead_s is 7\.0, .* below round_s \(5\.0\) in cluster\.toml"
    ):
        load(tmp_path, "round_s = 5\nsolve_lead_s = 7")


def test_a_fault_can_be_handled_by_a_program(tmp_path: Path) -> None:
    """The place is there in parts."""
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, "seed = 1\n[[tenants]]\nname = 1")
    assert (caught.value.field, caught.value.line) == ("tenants[0].name", 3)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    """Missing, unknown, too large, or not text: each is said in words."""
    with pytest.raises(ConfigError, match=r"cannot read .*none\.toml: no such file or directory"):
        load_settings(tmp_path / "none.toml")
    with pytest.raises(ConfigError, match=r"must end in \.toml, \.yaml or \.yml"):
        load(tmp_path, "", "cluster.ini")
    with pytest.raises(ConfigError, match="larger than 1024 KiB"):
        load(tmp_path, "#" * 2**21)
    (tmp_path / "bad.toml").write_bytes(b"seed = 1\npolicy = '\xff'")
    with pytest.raises(ConfigError, match=r"bad\.toml, line 2: not UTF-8 text"):
        load_settings(tmp_path / "bad.toml")


# The example


def test_the_example_is_the_defaults(tmp_path: Path) -> None:
    """As it is, and with every default switched on, the example changes nothing."""
    example = example_config()
    assert load(tmp_path, example) == Settings()
    switched_on = re.sub(r"^#(?=\w)", "", example, flags=re.MULTILINE)
    assert switched_on.count("\n#") < example.count("\n#")
    assert load(tmp_path, switched_on) == Settings()


def test_the_example_names_every_setting() -> None:
    """Every key stands in the example, those of tenants too."""
    example = example_config()
    for model in (Settings, TenantSpec):
        for field in msgspec.structs.fields(model):
            assert re.search(rf"^#.*\b{field.name}\b", example, flags=re.MULTILINE), field.name


def test_the_example_says_what_settings_mean() -> None:
    """The comment beside a field of the model is the one in the example."""
    assert (
        "# rounds that a gang is skipped before GPUs are held back for it\n#reserve_after = 2\n"
        in example_config()
    )


@pytest.mark.parametrize("model", [DaemonConfig, AgentConfig])
def test_every_key_of_an_example_is_explained(model: type[msgspec.Struct]) -> None:
    """Of the daemon, of each table in it, and of an agent: a comment stands above every key, or beside it."""
    lines = example_config(model, "OUR_").splitlines()
    keys = [at for at, line in enumerate(lines) if re.match(r"#\w+ = |# \w+ (= |is not set)", line)]
    bare = [
        lines[at]
        for at in keys
        if not re.match(r"# [^\[]", lines[at - 1]) and not re.search(r"  # \w", lines[at])
    ]
    assert len(keys) > 15
    assert bare == []


def test_a_comment_may_stand_inside_the_declaration() -> None:
    """As the formatter leaves it where the line is long."""
    assert "# how many of them there are\n#count = 3\n" in example_config(Long)


@pytest.mark.parametrize(
    ("variable", "meant"),
    [
        ("GAVEL_SERVE_SCHEDULER_ROUND_S", "GAVEL_SERVE_SCHEDULER__ROUND_S"),
        ("GAVEL_SERVE_ROUND_S", "GAVEL_SERVE_SCHEDULER__ROUND_S"),
        ("GAVEL_SERVE_KEEPING_COMPACT", "GAVEL_SERVE_KEEPING__COMPACT"),
        ("GAVEL_SERVE_LISTN", "'listen'"),
    ],
)
def test_a_variable_with_too_few_underscores_leads_to_the_right_one(variable: str, meant: str) -> None:
    """What anybody would write first is answered with what to write; the example says it before."""
    with pytest.raises(ConfigError) as caught:
        daemon_config(None, {}, (), {variable: "5"})
    assert str(caught.value).endswith(f" in {variable}; did you mean {meant}?")
    assert "GAVEL_SERVE_SCHEDULER__" in example_config(DaemonConfig, "GAVEL_SERVE_").partition("\n\n")[0]


def test_the_example_shows_a_tenant(tmp_path: Path) -> None:
    """The commented entry of a list is a valid one, once its blanks are filled in."""
    example = example_config()
    entry = re.sub(r"^# ", "", example[example.index("# [[tenants]]") :], flags=re.MULTILINE)
    entry = entry.replace("…", "research")
    assert load(tmp_path, entry) == Settings(tenants=(TenantSpec(name="research"),))


class Long(msgspec.Struct, frozen=True, kw_only=True):
    """A declaration over several lines."""

    count: int = (  # how many
        3  # of them there are
    )


class Inner(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A table in a table."""

    size: int = 1  # how large

    def checked(self) -> Inner:
        """Sizes are positive."""
        if self.size < 1:
            raise InvalidSpec("size", f"is {self.size}, must be at least 1")
        return self


class Outer(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A file with a table."""

    name: str = "x"  # what it is called
    kinds: dict[str, float] = {}
    inner: Inner = Inner()  # What is inside.


def test_what_is_said_elsewhere_goes_over_the_file(tmp_path: Path) -> None:
    """Later words win, keys with dots reach into tables, and plain words need no quotes."""
    path = tmp_path / "c.toml"
    path.write_text('name = "file"\n[inner]\nsize = 5\n')
    said = (
        *environment("OUR_", {"OUR_INNER__SIZE": "7", "OUR_NAME": "env", "HOME": "x"}),
        Said("name", "127.0.0.1:80", "--name"),
        Said("kinds.v100", "2.5", "--set kinds.v100"),
    )
    assert load_config(Outer, path, said) == Outer(
        name="127.0.0.1:80", kinds={"v100": 2.5}, inner=Inner(size=7)
    )
    assert load_config(Outer, None, ()) == Outer()


@pytest.mark.parametrize(
    ("said", "message"),
    [
        (
            Said("inner.size", "0", "OUR_INNER__SIZE"),
            "inner.size is 0, must be at least 1 in OUR_INNER__SIZE",
        ),
        (Said("inner.size", "big", "--size"), "inner.size is 'big' in --size; must be a whole number"),
        (Said("inner.sise", "3", "--set"), "unknown key 'inner.sise' in --set; did you mean 'size'?"),
        (Said("size", "3", "--set"), "unknown key 'size' in --set; did you mean 'inner.size'?"),
        (Said("outer.size", "3", "--set"), "unknown key 'outer' in --set; there are name, kinds, inner"),
        (Said("name.first", "a", "--set"), "name is no table, so it has no name.first in --set"),
        (Said("inner", "3", "OUR_INNER"), "inner is 3 in OUR_INNER; must be a table of keys and values"),
    ],
)
def test_a_fault_says_who_said_it(tmp_path: Path, said: Said, message: str) -> None:
    """Not the file's line, when it was not the file."""
    path = tmp_path / "c.toml"
    path.write_text('name = "file"\n')
    with pytest.raises(ConfigError) as caught:
        load_config(Outer, path, (said,))
    assert str(caught.value) == message


def test_a_fault_in_a_table_names_its_line(tmp_path: Path) -> None:
    """Checks of an inner model name the outer file's place."""
    path = tmp_path / "c.toml"
    path.write_text("[inner]\n\nsize = -3\n")
    with pytest.raises(
        ConfigError, match=re.escape("inner.size is -3, must be at least 1 in c.toml, line 3")
    ):
        load_config(Outer, path)


def test_tables_come_last_in_the_example(tmp_path: Path) -> None:
    """With their headers, so that taking a # away changes that key; as it stands it is the defaults."""
    path = tmp_path / "c.toml"
    path.write_text(example_config(Outer))
    assert load_config(Outer, path) == Outer()
    path.write_text(example_config(Outer).replace("#size = 1", "size = 9"))
    assert load_config(Outer, path).inner.size == 9


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
    """They are refused where they do not fit; and a fault that nobody's option or line names ends in no "in"."""
    with pytest.raises(
        ConfigError, match=r"^scheduler\.solve_lead_s is 5\.0, .* in --set scheduler\.solve_lead_s$"
    ):
        daemon_config(None, {"scheduler.round_s": "4"}, ("scheduler.solve_lead_s=5",), {})
    with pytest.raises(ConfigError, match=r"below round_s \(4\.0\)$"):
        daemon_config(None, {"scheduler.round_s": "4"}, ("scheduler.plan_lead_s=5",), {})


def test_an_address_for_agents_needs_tls() -> None:
    """Without it they link where people do: an address of their own would be passed over in silence."""
    with pytest.raises(ConfigError, match=r"tls is off in --set agents_listen; .* auth = 'tokens'$"):
        daemon_config(None, {}, ("agents_listen=127.0.0.1:7271",), {})
