"""A cluster with keys and tokens: every caller without access is refused with the reason and the remedy."""

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
from tests.support.wording import Wording

# An agent of a release with another version of the protocol.
NEWER = (
    "import sys; import worker_agent.daemon as whole; whole.PROTOCOL = 99;"
    "from worker_agent.__main__ import main; sys.exit(main())"
)


class Secured(NamedTuple):
    """A scheduler with keys, and one node."""

    operator: Operator
    fingerprint: str

    @property
    def address(self) -> str:
        """Return the address for users and joining nodes."""
        return f"127.0.0.1:{self.operator.port}"

    def token(self, *words: str) -> str:
        """Return a token with which one node may join."""
        return self.operator.gavel("token", "join", *words).stdout.strip()

    def join(self, name: str, token: str, fingerprint: str = "", code: int = 0) -> str:
        """Run `gavel agent join`, and return its output."""
        done = self.operator.gavel(
            *("agent", "join", "--scheduler", self.address, "--name", name, "--token", token),
            *(
                "--ca-fingerprint",
                fingerprint or self.fingerprint,
                "--state-dir",
                str(self.operator.folder / name),
            ),
            code=code,
        )
        return done.stdout + done.stderr

    def agent(self, name: str, state: str) -> tuple[str, ...]:
        """Return the options of an agent with this name and this state directory."""
        return (
            *("--scheduler", f"127.0.0.1:{self.operator.port + 1}", "--name", name, "--gpus", "v100=1"),
            *("--single-user", "--state-dir", str(self.operator.folder / state)),
        )

    def dismissed(self, *command: str) -> str:
        """Run an agent that is dismissed, ending with code 1, and return its log."""
        env = {**self.operator.env, "PYTHONUNBUFFERED": "1"}
        done = subprocess.run(
            [sys.executable, *command],
            env=env,
            cwd=self.operator.folder,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        assert done.returncode == 1, done.stderr
        return done.stderr


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    """A cluster after init, serve, token join, agent join and agent, so that n1 is linked."""
    operator = Operator(tmp_path_factory.mktemp("secured"))
    operator.env["XDG_CONFIG_HOME"] = str(operator.folder / "config")
    operator.gavel(
        "init",
        str(operator.data),
        "--port",
        str(operator.port),
        "--token-file",
        str(operator.folder / "token"),
    )
    operator.sign_in()
    with operator.running("serve", "serve", "--config", str(operator.data / "gavel.toml")) as log:
        eventually(lambda: "listening on" in log.read_text(), "the scheduler listens")
        created = operator.gavel("token", "join", "--node", "n1")
        fingerprint = re.search(r"sha256:[0-9a-f]{64}", created.stderr)
        assert fingerprint
        cluster = Secured(operator, fingerprint.group())
        cluster.join("n1", created.stdout.strip())
        with operator.running("n1", "agent", *cluster.agent("n1", "n1")) as n1:
            eventually(lambda: "linked to the scheduler" in n1.read_text(), "n1 is linked")
            yield cluster
            with _client(operator, operator.env["GAVEL_TOKEN"]) as client:
                assert [node.name for node in client.nodes()] == ["n1"], "no other node was let in"


def _client(operator: Operator, token: str) -> Client:
    return Client(f"127.0.0.1:{operator.port}", token=token, ca=operator.env["GAVEL_CA"], retry_s=0)


def reason(log: str) -> str:
    """Return the last line of an agent's log, from the message on."""
    return log.splitlines()[-1].partition(": ")[2]


def secret_of(token: str) -> str:
    """Return the secret part of a token, after its id; the secret may contain underscores."""
    _, _, secret = token.split("_", 2)
    assert len(secret) > 20
    return secret


def test_a_join_token_that_is_wrong_used_or_for_another_node_is_refused(secured: Secured) -> None:
    """Each attempt ends with one line, and no certificate is left on the node."""
    used = secured.token("--node", "n2")
    secured.join("n2", used)
    shutil.rmtree(secured.operator.folder / "n2")
    wrong = used[:-4] + ("aaaa" if not used.endswith("aaaa") else "bbbb")
    for token, words in (
        (used, "already used"),
        (wrong, "refuses"),
        ("nonsense", "refuses"),
        (secured.token("--node", "n9"), "for another node than 'n2'"),
    ):
        answer = secured.join("n2", token, code=2)
        assert words in answer, answer
        assert len(answer.splitlines()) == 1
        assert not list((secured.operator.folder / "n2").rglob("*.pem"))


def test_a_wrong_fingerprint_keeps_the_token_from_being_sent(secured: Secured, wording: Wording) -> None:
    """The token stays valid, and works with the right fingerprint."""
    token = secured.token("--node", "n4")
    answer = secured.join("n4", token, "sha256:" + "0" * 64, code=2)
    assert secured.fingerprint in answer, "the true fingerprint, to compare"
    wording(answer, address=secured.address, fingerprint=secured.fingerprint)
    assert "has joined" in secured.join("n4", token)


def test_a_second_agent_of_one_name_is_dismissed(secured: Secured, wording: Wording) -> None:
    """The second agent gets the remedy; the first one stays."""
    shutil.copytree(
        secured.operator.folder / "n1" / "certificates", secured.operator.folder / "twin" / "certificates"
    )
    answer = secured.dismissed("-m", "gavel", "agent", *secured.agent("n1", "twin"))
    assert ("'n1'" in answer, "--name" in answer) == (True, True)
    wording(reason(answer))
    with _client(secured.operator, secured.operator.env["GAVEL_TOKEN"]) as client:
        assert [node.state for node in client.nodes()] == ["up"]


def test_a_certificate_of_another_node_is_refused(secured: Secured, wording: Wording) -> None:
    """An agent is the node that its certificate names."""
    shutil.copytree(
        secured.operator.folder / "n1" / "certificates", secured.operator.folder / "n5" / "certificates"
    )
    answer = secured.dismissed("-m", "gavel", "agent", *secured.agent("n5", "n5"))
    assert ("node:n1" in answer, "node:n5" in answer) == (True, True)
    wording(reason(answer))


def test_an_agent_of_another_version_is_dismissed(secured: Secured, wording: Wording) -> None:
    """The agent's log has the protocol versions of both sides, and the agent ends."""
    secured.join("n6", secured.token("--node", "n6"))
    answer = secured.dismissed("-c", NEWER, *secured.agent("n6", "n6"))
    assert ("(version)" in answer, "99" in answer) == (True, True)
    wording(reason(answer))


def test_a_revoked_token_is_refused(secured: Secured, wording: Wording) -> None:
    """The token is valid until then; after that, the command ends with code 5 and prints how to get another."""
    created = secured.operator.gavel("token", "create", "--user", "bob", "--role", "user")
    secret = created.stdout.strip()
    with _client(secured.operator, secret) as client:
        assert client.who_am_i().user == "bob"
    token_id = secret.split("_")[1]
    secured.operator.gavel("token", "revoke", token_id)
    secured.operator.env["GAVEL_TOKEN"] = secret
    try:
        answer = secured.operator.gavel("submit", "--", "true", code=5).stderr
    finally:
        secured.operator.sign_in()
    assert ("revoked" in answer, "`gavel token create`" in answer) == (True, True)
    wording(answer, id=token_id)


def test_a_revoked_node_is_dismissed_until_it_joins_again(secured: Secured, wording: Wording) -> None:
    """The agent of a revoked node gets the reason and the remedy; a new join gives it a valid certificate."""
    secured.join("n8", secured.token("--node", "n8"))
    assert "revoked node n8" in secured.operator.gavel("token", "revoke", "--node", "n8").stdout
    answer = secured.dismissed("-m", "worker_agent", *secured.agent("n8", "n8"))
    assert "n8 was revoked" in answer, answer
    wording(reason(answer))
    shutil.rmtree(secured.operator.folder / "n8")
    secured.join("n8", secured.token("--node", "n8"))


def test_a_user_needs_a_token_and_the_authority(secured: Secured, wording: Wording) -> None:
    """The command ends with code 5 without a token, and with code 4 and a possible cause under another authority."""
    operator = secured.operator
    token = operator.env.pop("GAVEL_TOKEN")
    try:
        answer = operator.gavel("queue", code=5).stderr
        assert "GAVEL_TOKEN" in answer
        wording(answer)
    finally:
        operator.env["GAVEL_TOKEN"] = token
    operator.gavel(
        "init", str(operator.folder / "other"), "--token-file", str(operator.folder / "other-token")
    )
    operator.env["GAVEL_CA"] = str(operator.folder / "other" / "tls" / "ca.pem")
    try:
        answer = operator.gavel("queue", code=4).stderr
    finally:
        operator.sign_in()
    assert "GAVEL_CA" in answer
    wording(answer, folder=operator.folder, address=secured.address)


def test_every_attempt_is_in_the_audit_log(secured: Secured) -> None:
    """Joins and refusals are logged, without any secret."""
    before = secured.token()
    secured.join("n7", before)
    secured.join("n7b", before, code=2)
    text = (secured.operator.data / "audit.log").read_text()
    joins = [line for line in map(json.loads, text.splitlines()) if line["call"].endswith("Join")]
    assert [line["result"] == "ok" for line in joins[-2:]] == [True, False]
    for token in (before, secured.operator.env["GAVEL_TOKEN"]):
        assert secret_of(token) not in text
