"""Settings of an agent: file, environment and options, and one line for whatever is wrong with them."""

from __future__ import annotations

import asyncio
import fcntl
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
from worker_agent.daemon import REMOVED, WholeAgent, run_agent
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
    """A file of settings."""
    path = tmp_path / name
    path.write_text(text)
    return str(path)


def test_options_go_over_the_environment_and_that_over_the_file(tmp_path):
    """The nearest word counts; what nobody says has its default."""
    config = agent_config(
        written(tmp_path, GOOD),
        {"scheduler": "other:1", "ask_s": None},
        {"GAVEL_AGENT_GPUS": "k80=2", "GAVEL_AGENT_GRACE_S": "7", "GAVEL_AGENT_LABELS": "zone=b,rack=3"},
    )
    assert (config.scheduler, config.gpus, config.drain_on_stop) == ("other:1", "k80=2", True)
    assert (config.grace_s, config.ask_s, config.labels) == (7.0, 20.0, {"zone": "b", "rack": "3"})


def test_yaml_says_the_same_as_toml(tmp_path):
    """By the name of the file."""
    yaml = "scheduler: head-node:7071\ngpus: v100=4\ndrain_on_stop: true\nlabels: {zone: a}\n"
    toml_config = agent_config(written(tmp_path, GOOD), {})
    assert agent_config(written(tmp_path, yaml, "agent.yaml"), {}) == toml_config


@pytest.mark.parametrize(
    ("text", "field", "part"),
    [
        ('scheduler = "nowhere"', "scheduler", 'is "nowhere"; must be an address such as head-node:7071'),
        ('scheduler = "a:99999"', "scheduler", "must be an address"),
        ('name = "a/b"', "name", "must be at most 63 letters, digits, '.', '_' and '-'"),
        ('gpus = "v100"', "gpus", "expected TYPE=COUNT"),
        ("ask_s = -1", "ask_s", "is -1; must be a number from 0 to 1,000,000"),
        ("logs_mb = 0", "logs_mb", "is 0; must be a number from 1 to 1,000,000"),
        ("ask_s = nan", "ask_s", "must be a number from 0 to 1,000,000"),
        ("grace_s = 1e300", "grace_s", "is 1e+300; must be"),
        ('log_level = "loud"', "log_level", 'is "loud"; must be "debug" or '),
        ('containment = "none"', "containment", '"subreaper"'),
        ("single_user = true\nswitch_users = true", "single_user", "choose one"),
        ('grace = "5"', "grace", 'did you mean "grace_s"?'),
        ('grace_s = "5"', "grace_s", 'is "5"; must be a number'),
        ('single_user = "yes"', "single_user", "must be true or false"),
        ("gpus = 4", "gpus", "is 4; must be text in quotes"),
        ("labels = 3", "labels", "must be a mapping"),
        ('labels = {"a b" = "c"}', "labels", 'is "a b=c"; must be a plain name'),
        ("gpus = ", "", "not valid TOML"),
    ],
)
def test_an_error_names_the_setting_and_its_line(tmp_path, text, field, part):
    """File, line, field, value, and what it must be, in one line."""
    with pytest.raises(ConfigError) as caught:
        agent_config(written(tmp_path, f"\n\n{text}"), {})
    assert (caught.value.field, caught.value.line) == (field, 3)
    assert str(caught.value).startswith(f"agent.toml, line 3: {field}")
    assert part in str(caught.value)
    assert "\n" not in str(caught.value)


def test_yaml_is_read_by_the_rules_of_1_2(tmp_path):
    """`no` is a name and 12:30 is text, as in job files; a key that appears twice is refused."""
    config = agent_config(written(tmp_path, "name: no\nlabels: {slot: 12:30, on: off}\n", "a.yaml"), {})
    assert (config.name, config.labels) == ("no", {"slot": "12:30", "on": "off"})
    with pytest.raises(ConfigError) as caught:
        agent_config(written(tmp_path, "name: a\nask_s: 1\nname: b\n", "a.yaml"), {})
    assert (caught.value.field, caught.value.line) == ("name", 3)


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("a.yaml", "b: 1\na: [", r"^a\.yaml, line \d: not valid YAML"),
        ("a.yaml", "- a", r"^a\.yaml, line 1: must be a mapping"),
        ("a.toml", "\xff", "^a.toml, line 1: not valid TOML"),
        ("agent.conf", "name 7", r"^agent\.conf, line 1: not valid TOML"),
    ],
)
def test_files_that_are_none(tmp_path, name, text, words):
    """Broken syntax is one line with the place, too. A name that does not say YAML is TOML."""
    with pytest.raises(ConfigError, match=words):
        agent_config(written(tmp_path, text, name), {})


def test_a_file_that_is_not_there_is_named(tmp_path):
    """And nothing is started."""
    with pytest.raises(ConfigError, match=r"cannot read .*none\.toml: no such file"):
        agent_config(str(tmp_path / "none.toml"), {})


def test_an_error_names_its_source_when_it_was_no_file():
    """An option by its flag, a variable by its name."""
    with pytest.raises(ConfigError, match=r"^--gpus: gpus "):
        agent_config(None, {"gpus": "?"})
    with pytest.raises(ConfigError, match=r"^GAVEL_AGENT_GPUS: gpus "):
        agent_config(None, {}, {"GAVEL_AGENT_GPUS": "?"})
    with pytest.raises(ConfigError, match=r"^GAVEL_AGENT_GPU: gpu is unknown; did you mean .gpus"):
        agent_config(None, {}, {"GAVEL_AGENT_GPU": "?"})


def test_the_command_has_an_option_for_every_setting():
    """`gavel agent` offers what the settings are, and nothing else."""
    options = {
        one.name: one for one in agent.get_params(click.Context(agent)) if isinstance(one, click.Option)
    }
    assert set(get_type_hints(AgentConfig)) < set(options)
    assert (options["ask_s"].metavar, options["drain_on_stop"].is_flag, options["labels"].multiple) == (
        "SECONDS",
        True,
        True,
    )


def test_python_dash_m_takes_the_same_options(capsys):
    """Unknown ones end with usage, wrong values with one line; both with exit status 2."""
    assert main(["--gpus", "v100=none"]) == 2
    assert capsys.readouterr().err.startswith("worker_agent: --gpus: gpus ")
    with pytest.raises(SystemExit) as ended:
        main(["--gpu", "v100=1"])
    assert ended.value.code == 2


def test_an_agent_that_is_root_by_accident_is_refused(tmp_path, capsys, monkeypatch):
    """Root without --single-user or --switch-users: a line that says which to choose, before anything else."""
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
    assert "another agent works" in capsys.readouterr().err


def test_a_token_file_that_cannot_be_used_is_named(tmp_path, capsys):
    """Missing or empty: which file, in one line."""
    empty = tmp_path / "token"
    empty.write_text("\n")
    for path, words in ((tmp_path / "none", "No such file"), (empty, "holds no token")):
        options = ["--gpus", "v100=1", "--single-user", "--state-dir", str(tmp_path / "s")]
        assert main([*options, "--token-file", str(path)]) == 1
        assert words in capsys.readouterr().err


def test_jobs_of_many_users_want_a_scheduler_that_can_be_trusted(tmp_path, capsys, monkeypatch):
    """A root agent without a certificate would start jobs as whomever anybody on this machine names."""
    monkeypatch.setattr("os.geteuid", lambda: 0)
    assert main(["--gpus", "v100=1", "--switch-users", "--state-dir", str(tmp_path / "s")]) == 1
    assert "gavel agent join" in capsys.readouterr().err


def test_a_scheduler_that_forgot_its_epochs_is_not_obeyed_in_silence(tmp_path):
    """Its orders would be refused, and it would wait for them for ever: the agent leaves, and says what to do."""
    state = tmp_path / "s"
    state.mkdir()
    (state / "agent.json").write_text('{"epoch": 7, "generation": 3}')
    config = agent_config(None, {"gpus": "v100=1", "single_user": True, "state_dir": str(state)})
    whole = WholeAgent(config)
    with pytest.raises(Dismissed, match=r"epoch 1.*epoch 7.*agent\.json"):
        whole.link._on_welcomed(pb.Welcome(epoch=1), Outgoing(lambda lease: "", time.monotonic))
    whole.link._on_welcomed(pb.Welcome(epoch=7), Outgoing(lambda lease: "", time.monotonic))
    whole.close()


@pytest.mark.parametrize(("reason", "status"), [("removed", 3), ("duplicate", 1), ("older", 1)])
def test_an_agent_whose_node_was_removed_is_told_apart(tmp_path, monkeypatch, reason, status):
    """A service manager starts the others again, and leaves this one alone: its unit names the status."""

    async def sent_away(whole):
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(raising(Dismissed(reason, "go")))

    async def raising(error):
        raise error

    monkeypatch.setattr(WholeAgent, "run", sent_away)
    config = agent_config(None, {"gpus": "v100=1", "single_user": True, "state_dir": str(tmp_path / "s")})
    assert run_agent(config) == status
    unit = Path(__file__).parents[2] / "deploy" / "gavel-agent.service"
    assert f"RestartPreventExitStatus={REMOVED}\n" in unit.read_text()


def test_how_much_output_is_kept_is_what_the_operator_says(tmp_path):
    """In four pieces, of which all are full at most."""
    said = {"gpus": "v100=1", "single_user": True, "state_dir": str(tmp_path), "logs_mb": 20.0}
    config = agent_config(None, said)
    whole = WholeAgent(config)
    node = whole.agent.workshop.node
    whole.close()
    assert (node.log_bytes_max, node.log_files_max) == (5_000_000, 4)
