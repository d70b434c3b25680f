"""Settings of an agent: file, environment and options, and one line for each mistake in them."""

from __future__ import annotations

import asyncio
import fcntl
import re
import time
from pathlib import Path
from typing import get_type_hints

import click
import pytest

from gavel.cli.service.agent import agent
from protos.files.settings import ConfigError
from protos.gavel.v1 import agents_pb2 as pb
from worker_agent.__main__ import main
from worker_agent.config import AgentConfig, agent_config
from worker_agent.daemon import REMOVED, AgentService, run_agent
from worker_agent.link.outgoing import Outgoing
from worker_agent.link.stream import Dismissed

GOOD = """\
scheduler = "head-node:7071"
gpus = "v100=4"  # declared
drain_on_stop = true

[labels]
zone = "a"
"""


def written(tmp_path, text, name="agent.toml"):
    """Write a file of settings, and return its path."""
    path = tmp_path / name
    path.write_text(text)
    return str(path)


def test_options_go_over_the_environment_and_that_over_the_file(tmp_path):
    """The nearest source counts; a setting that no source has keeps its default."""
    config = agent_config(
        written(tmp_path, GOOD),
        {"scheduler": "other:1", "ask_s": None},
        {"GAVEL_AGENT_GPUS": "k80=2", "GAVEL_AGENT_GRACE_S": "7", "GAVEL_AGENT_LABELS": "zone=b,rack=3"},
    )
    assert (config.scheduler, config.gpus, config.drain_on_stop) == ("other:1", "k80=2", True)
    assert (config.grace_s, config.ask_s, config.labels) == (7.0, 20.0, {"zone": "b", "rack": "3"})


def test_a_yaml_file_gives_the_same_config_as_toml(tmp_path):
    """The file's name decides how it is read."""
    yaml = "scheduler: head-node:7071\ngpus: v100=4\ndrain_on_stop: true\nlabels: {zone: a}\n"
    toml_config = agent_config(written(tmp_path, GOOD), {})
    assert agent_config(written(tmp_path, yaml, "agent.yaml"), {}) == toml_config


@pytest.mark.parametrize(
    ("text", "field", "value"),
    [
        ('scheduler = "nowhere"', "scheduler", "nowhere"),
        ('scheduler = "a:99999"', "scheduler", "a:99999"),
        ('name = "a/b"', "name", "63"),
        ('gpus = "v100"', "gpus", "TYPE=COUNT"),
        ("ask_s = -1", "ask_s", "-1"),
        ("logs_mb = 0", "logs_mb", "1,000,000"),
        ("ask_s = nan", "ask_s", "1,000,000"),
        ("grace_s = 1e300", "grace_s", "1e+300"),
        ('log_level = "loud"', "log_level", "loud"),
        ('containment = "none"', "containment", '"subreaper"'),
        ("single_user = true\nswitch_users = true", "single_user", "switch_users"),
        ('grace = "5"', "grace", "grace_s"),
        ('grace_s = "5"', "grace_s", '"5"'),
        ('single_user = "yes"', "single_user", "yes"),
        ("gpus = 4", "gpus", "4"),
        ("labels = 3", "labels", "3"),
        ('container_runtime = "lxc"', "container_runtime", "lxc"),
        ('container_mounts = "/data:shared"', "container_mounts", "/data:shared"),
        ('container_mounts = "/data/../etc"', "container_mounts", ".."),
        ('labels = {"a b" = "c"}', "labels", "a b=c"),
        ("gpus = ", "", "TOML"),
    ],
)
def test_an_error_names_the_setting_and_its_line(tmp_path, text, field, value, wording):
    """File, line, field, value, and what it must be, in one line."""
    with pytest.raises(ConfigError) as caught:
        agent_config(written(tmp_path, f"\n\n{text}"), {})
    assert (caught.value.field, caught.value.line) == (field, 3)
    assert str(caught.value).startswith(f"agent.toml, line 3: {field}")
    assert value in str(caught.value)
    assert "\n" not in str(caught.value)
    wording(caught.value, detail=re.compile(r"(?<=not valid TOML: ).*"))


def test_yaml_is_read_by_the_rules_of_1_2(tmp_path):
    """`no` is a name and 12:30 is text, as in job files; a key that appears twice is refused."""
    config = agent_config(written(tmp_path, "name: no\nlabels: {slot: 12:30, on: off}\n", "a.yaml"), {})
    assert (config.name, config.labels) == ("no", {"slot": "12:30", "on": "off"})
    with pytest.raises(ConfigError) as caught:
        agent_config(written(tmp_path, "name: a\nask_s: 1\nname: b\n", "a.yaml"), {})
    assert (caught.value.field, caught.value.line) == ("name", 3)


@pytest.mark.parametrize(
    ("name", "text"),
    [("a.yaml", "b: 1\na: ["), ("a.yaml", "- a"), ("a.toml", "\xff"), ("agent.conf", "name 7")],
    ids=["open list", "no mapping", "not UTF-8", "not TOML"],
)
def test_a_malformed_file_is_named_with_the_line(tmp_path, name, text, wording):
    """Broken syntax is one line with the place, too. A file whose name is not YAML's is read as TOML."""
    with pytest.raises(ConfigError, match=rf"^{re.escape(name)}, line \d: ") as caught:
        agent_config(written(tmp_path, text, name), {})
    wording(caught.value, detail=re.compile(r"(?<=not valid (?:TOML|YAML): ).*"))


def test_a_missing_file_is_named(tmp_path, wording):
    """The error has the path, and nothing is started."""
    with pytest.raises(ConfigError, match=r"none\.toml") as caught:
        agent_config(str(tmp_path / "none.toml"), {})
    wording(caught.value, folder=tmp_path)


def test_an_error_names_the_option_or_the_variable(wording):
    """An option by its flag, a variable by its name."""
    with pytest.raises(ConfigError, match=r"^--gpus: gpus "):
        agent_config(None, {"gpus": "?"})
    with pytest.raises(ConfigError, match=r"^GAVEL_AGENT_GPUS: gpus "):
        agent_config(None, {}, {"GAVEL_AGENT_GPUS": "?"})
    with pytest.raises(ConfigError, match=r"^GAVEL_AGENT_GPU: gpu .*gpus") as caught:
        agent_config(None, {}, {"GAVEL_AGENT_GPU": "?"})
    wording(caught.value)


def test_the_command_has_an_option_for_every_setting():
    """`gavel agent` has an option for every setting, of its kind."""
    parameters = agent.get_params(click.Context(agent))
    options = {option.name: option for option in parameters if isinstance(option, click.Option)}
    assert set(get_type_hints(AgentConfig)) < set(options)
    assert (options["ask_s"].metavar, options["drain_on_stop"].is_flag, options["labels"].multiple) == (
        "SECONDS",
        True,
        True,
    )


def test_python_dash_m_takes_the_same_options(capsys):
    """Unknown options end with the usage, wrong values with one line; both with exit status 2."""
    assert main(["--gpus", "v100=none"]) == 2
    assert capsys.readouterr().err.startswith("worker_agent: --gpus: gpus ")
    with pytest.raises(SystemExit) as ended:
        main(["--gpu", "v100=1"])
    assert ended.value.code == 2


def test_python_dash_m_takes_a_choice(tmp_path, capsys, monkeypatch):
    """A setting with a few possible values is an option like the others, and a wrong value is refused by its name."""
    configs = []
    monkeypatch.setattr("worker_agent.__main__.run_agent", lambda config: configs.append(config) or 0)
    options = ("--scheduler", "head:7070", "--state-dir", str(tmp_path), "--checkpoint-dir", str(tmp_path))
    assert main([*options, "--containment", "subreaper"]) == 0
    assert configs[0].containment == "subreaper"
    assert main([*options, "--containment", "nothing"]) == 2
    assert "containment" in capsys.readouterr().err


def test_an_agent_that_is_root_by_accident_is_refused(tmp_path, capsys, monkeypatch):
    """Root without --single-user or --switch-users: one line names both, before anything else happens."""
    monkeypatch.setattr("os.geteuid", lambda: 0)
    assert main(["--gpus", "v100=1", "--state-dir", str(tmp_path / "s")]) == 1
    assert "--single-user" in capsys.readouterr().err
    assert not (tmp_path / "s").exists()


def test_a_second_agent_in_the_same_state_directory_is_refused(tmp_path, capsys):
    """Two agents would take each other's jobs for their own."""
    state = tmp_path / "s"
    state.mkdir()
    with (state / "agent.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert main(["--gpus", "v100=1", "--single-user", "--state-dir", str(state)]) == 1
    assert "another agent uses" in capsys.readouterr().err


def test_a_token_file_that_cannot_be_used_is_named(tmp_path, capsys):
    """Missing or empty: one line names the file."""
    empty = tmp_path / "token"
    empty.write_text("\n")
    for path, words in ((tmp_path / "none", "No such file"), (empty, "holds no token")):
        options = ["--gpus", "v100=1", "--single-user", "--state-dir", str(tmp_path / "s")]
        assert main([*options, "--token-file", str(path)]) == 1
        assert words in capsys.readouterr().err


def test_a_root_agent_wants_a_certificate_of_the_scheduler(tmp_path, capsys, monkeypatch):
    """Without one it would start jobs as any user that any process on this machine names."""
    monkeypatch.setattr("os.geteuid", lambda: 0)
    assert main(["--gpus", "v100=1", "--switch-users", "--state-dir", str(tmp_path / "s")]) == 1
    assert "gavel agent join" in capsys.readouterr().err


def test_an_agent_leaves_a_scheduler_that_lost_its_epochs(tmp_path):
    """An agent that refused the scheduler's orders would only make both wait: it ends instead, with the remedy."""
    state = tmp_path / "s"
    state.mkdir()
    (state / "agent.json").write_text('{"epoch": 7, "generation": 3}')
    config = agent_config(None, {"gpus": "v100=1", "single_user": True, "state_dir": str(state)})
    service = AgentService(config)
    with pytest.raises(Dismissed, match=r"epoch 1.*epoch 7.*agent\.json"):
        service.link._on_welcomed(pb.Welcome(epoch=1), Outgoing(lambda lease: "", time.monotonic))
    service.link._on_welcomed(pb.Welcome(epoch=7), Outgoing(lambda lease: "", time.monotonic))
    service.close()


@pytest.mark.parametrize(("reason", "status"), [("removed", 3), ("duplicate", 1), ("older", 1)])
def test_the_exit_status_of_a_removed_node_is_its_own(tmp_path, monkeypatch, reason, status):
    """A service manager restarts other agents and leaves this one alone: its unit names the status."""

    async def sent_away(whole):
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(raising(Dismissed(reason, "go")))

    async def raising(error):
        raise error

    monkeypatch.setattr(AgentService, "run", sent_away)
    config = agent_config(None, {"gpus": "v100=1", "single_user": True, "state_dir": str(tmp_path / "s")})
    assert run_agent(config) == status
    unit = Path(__file__).parents[2] / "deploy" / "gavel-agent.service"
    assert f"RestartPreventExitStatus={REMOVED}\n" in unit.read_text()


def test_the_operator_sets_how_much_output_is_kept(tmp_path):
    """In four pieces, of which all are full at most."""
    options = {"gpus": "v100=1", "single_user": True, "state_dir": str(tmp_path), "logs_mb": 20.0}
    config = agent_config(None, options)
    service = AgentService(config)
    node = service.agent.workshop.node
    service.close()
    assert (node.log_bytes_max, node.log_files_max) == (5_000_000, 4)


@pytest.mark.parametrize(
    ("text", "size"), [("64GB", 64_000_000_000), ("1.5 tb", 1_500_000_000_000), ("1MB", 1_000_000), ("", 0)]
)
def test_the_size_of_a_cache_is_a_number_and_a_unit(text, size):
    """Units are decimal, as those of disks; an empty text means no cache."""
    assert agent_config(None, {"cache": text}).cache_bytes == size


@pytest.mark.parametrize("text", ["64", "lots", "-1GB", "0GB", "0.5MB", "1e400GB", "9999999999TB"])
def test_any_other_size_of_a_cache_is_refused(text):
    """The error names the setting and its value."""
    with pytest.raises(ConfigError, match=r"cache.*such as 64GB"):
        agent_config(None, {"cache": text})


def test_groups_of_the_cache_are_pairs_like_labels():
    """An option, a variable and a table give the same."""
    variables = {"GAVEL_AGENT_CACHE_GROUPS": "imagenet-1k=vision,c4=text"}
    expected = {"imagenet-1k": "vision", "c4": "text"}
    assert agent_config(None, {}, variables).cache_groups == expected
    assert agent_config(None, {"cache_groups": ("imagenet-1k=vision", "c4=text")}).cache_groups == expected
    with pytest.raises(ConfigError, match="cache_groups: 'c4' must be KEY=VALUE"):
        agent_config(None, {"cache_groups": ("c4",)})
