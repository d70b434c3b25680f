"""A cluster with keys and tokens, and everybody who should not get in: each is told why, and what to do."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from gavel.client import Client
from tests.e2e.cluster import PATIENCE_S, eventually
from tests.e2e.test_joining import Operator

NEWER = (  # an agent of a release that speaks another protocol
    "import sys; import worker_agent.daemon as whole; whole.PROTOCOL = 99;"
    "from worker_agent.__main__ import main; sys.exit(main())"
)


class Secured(NamedTuple):
    """A scheduler with keys, and one node."""

    me: Operator
    fingerprint: str

    @property
    def people(self) -> str:
        """Where people and joining nodes go."""
        return f"127.0.0.1:{self.me.port}"

    def token(self, *words: str) -> str:
        """With which one node may join."""
        return self.me.gavel("token", "join", *words).stdout.strip()

    def join(self, name: str, token: str, fingerprint: str = "", code: int = 0) -> str:
        """`gavel agent join`; what it says."""
        done = self.me.gavel(
            *("agent", "join", "--scheduler", self.people, "--name", name, "--token", token),
            *("--ca-fingerprint", fingerprint or self.fingerprint, "--state-dir", str(self.me.folder / name)),
            code=code,
        )
        return done.stdout + done.stderr

    def agent(self, name: str, state: str) -> tuple[str, ...]:
        """The options of an agent that is called so, and keeps its state there."""
        return (
            *("--scheduler", f"127.0.0.1:{self.me.port + 1}", "--name", name, "--gpus", "v100=1"),
            *("--single-user", "--state-dir", str(self.me.folder / state)),
        )

    def sent_away(self, *command: str) -> str:
        """What an agent says that does not stay; it ends by itself, with code 1."""
        env = {**self.me.env, "PYTHONUNBUFFERED": "1"}
        done = subprocess.run(
            [sys.executable, *command],
            env=env,
            cwd=self.me.folder,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        assert done.returncode == 1, done.stderr
        return done.stderr


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    """init, serve, token join, agent join, agent: n1 is linked."""
    me = Operator(tmp_path_factory.mktemp("secured"))
    me.env["XDG_CONFIG_HOME"] = str(me.folder / "config")
    me.gavel("init", str(me.data), "--port", str(me.port), "--token-file", str(me.folder / "token"))
    me.sign_in()
    with me.running("serve", "serve", "--config", str(me.data / "gavel.toml")) as log:
        eventually(lambda: "listening on" in log.read_text(), "the scheduler listens")
        made = me.gavel("token", "join", "--node", "n1")
        found = re.search(r"sha256:[0-9a-f]{64}", made.stderr)
        assert found
        cluster = Secured(me, found.group())
        cluster.join("n1", made.stdout.strip())
        with me.running("n1", "agent", *cluster.agent("n1", "n1")) as n1:
            eventually(lambda: "linked to the scheduler" in n1.read_text(), "n1 is linked")
            yield cluster
            with _client(me, me.env["GAVEL_TOKEN"]) as client:
                assert [node.name for node in client.nodes()] == ["n1"], "nobody else was let in"


def _client(me: Operator, token: str) -> Client:
    return Client(f"127.0.0.1:{me.port}", token=token, ca=me.env["GAVEL_CA"], retry_s=0)


def secret_of(token: str) -> str:
    """What nobody else may know: all behind the id, which may hold further underscores."""
    _, _, secret = token.split("_", 2)
    assert len(secret) > 20
    return secret


def test_a_join_token_that_is_wrong_used_or_for_another_node(secured: Secured) -> None:
    """Each is refused in one line, and no certificate is left on the node."""
    used = secured.token("--node", "n2")
    secured.join("n2", used)
    shutil.rmtree(secured.me.folder / "n2")
    wrong = used[:-4] + ("aaaa" if not used.endswith("aaaa") else "bbbb")
    for token, words in (
        (used, "already used"),
        (wrong, "refuses"),
        ("nonsense", "refuses"),
        (secured.token("--node", "n9"), "for another node than 'n2'"),
    ):
        said = secured.join("n2", token, code=2)
        assert words in said, said
        assert len(said.splitlines()) == 1
        assert not list((secured.me.folder / "n2").rglob("*.pem"))


def test_a_wrong_fingerprint_of_the_authority(secured: Secured) -> None:
    """The token is not sent: with the right fingerprint it is still good afterwards."""
    token = secured.token("--node", "n4")
    said = secured.join("n4", token, "sha256:" + "0" * 64, code=2)
    assert "is not the scheduler of this fingerprint" in said
    assert secured.fingerprint in said, "what it is instead, to compare"
    assert "has joined" in secured.join("n4", token)


def test_two_agents_of_one_name(secured: Secured) -> None:
    """The second is sent away with the remedy; the first stays."""
    shutil.copytree(secured.me.folder / "n1" / "certificates", secured.me.folder / "twin" / "certificates")
    said = secured.sent_away("-m", "gavel", "agent", *secured.agent("n1", "twin"))
    assert "another agent is linked as 'n1': give this one a name of its own (--name)" in said
    with _client(secured.me, secured.me.env["GAVEL_TOKEN"]) as client:
        assert [node.state for node in client.nodes()] == ["up"]


def test_a_certificate_of_another_node(secured: Secured) -> None:
    """An agent is who its certificate says."""
    shutil.copytree(secured.me.folder / "n1" / "certificates", secured.me.folder / "n5" / "certificates")
    said = secured.sent_away("-m", "gavel", "agent", *secured.agent("n5", "n5"))
    assert "its certificate is for node:n1, and not for node:n5: join with that name" in said


def test_an_agent_of_another_version(secured: Secured) -> None:
    """It is told which protocol each of them speaks, and ends."""
    secured.join("n6", secured.token("--node", "n6"))
    said = secured.sent_away("-c", NEWER, *secured.agent("n6", "n6"))
    assert re.search(
        r"sends this agent away \(version\): the agent speaks protocol 99, and this scheduler \d+: install the same",
        said,
    ), said


def test_a_token_that_is_revoked(secured: Secured) -> None:
    """It is good until then, and not a moment longer; the command says so with code 5, and how to get another."""
    made = secured.me.gavel("token", "create", "--user", "bob", "--role", "user")
    secret = made.stdout.strip()
    with _client(secured.me, secret) as client:
        assert client.who_am_i().user == "bob"
    token_id = secret.split("_")[1]
    secured.me.gavel("token", "revoke", token_id)
    secured.me.env["GAVEL_TOKEN"] = secret
    try:
        said = secured.me.gavel("submit", "--", "true", code=5).stderr
    finally:
        secured.me.sign_in()
    assert "revoked" in said
    assert "`gavel token create` makes one" in said


def test_a_node_that_is_revoked(secured: Secured) -> None:
    """Its agent is sent away with the reason and what to do; joined again, it has a certificate that counts."""
    secured.join("n8", secured.token("--node", "n8"))
    assert "revoked node n8" in secured.me.gavel("token", "revoke", "--node", "n8").stdout
    said = secured.sent_away("-m", "worker_agent", *secured.agent("n8", "n8"))
    assert "the certificate of n8 was revoked: have it join again" in said, said
    shutil.rmtree(secured.me.folder / "n8")
    secured.join("n8", secured.token("--node", "n8"))


def test_nobody_without_a_token_or_without_the_authority(secured: Secured) -> None:
    """No token: code 5. Another authority: code 4, and what may be wrong. No agent's door for people."""
    me = secured.me
    token = me.env.pop("GAVEL_TOKEN")
    try:
        assert "GAVEL_TOKEN or `gavel login` gives a token" in me.gavel("queue", code=5).stderr
    finally:
        me.env["GAVEL_TOKEN"] = token
    me.gavel("init", str(me.folder / "other"), "--token-file", str(me.folder / "other-token"))
    me.env["GAVEL_CA"] = str(me.folder / "other" / "tls" / "ca.pem")
    try:
        said = me.gavel("queue", code=4).stderr
    finally:
        me.sign_in()
    assert "no secure connection" in said
    assert "GAVEL_CA must name a copy of" in said


def test_every_attempt_is_in_the_audit_log(secured: Secured) -> None:
    """Who joined and who was refused, and no secret of anybody."""
    before = secured.token()
    secured.join("n7", before)
    secured.join("n7b", before, code=2)
    text = (secured.me.data / "audit.log").read_text()
    joins = [line for line in map(json.loads, text.splitlines()) if line["call"].endswith("Join")]
    assert [line["result"] == "ok" for line in joins[-2:]] == [True, False]
    for token in (before, secured.me.env["GAVEL_TOKEN"]):
        assert secret_of(token) not in text
