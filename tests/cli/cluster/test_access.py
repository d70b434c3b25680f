"""Commands about tokens, contexts and revoked nodes, against a real daemon."""

import json
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from gavel.client import Client
from gavel.client import results as r
from scheduler.live.access.roles import Role
from tests.cli.conftest import Gavel, keys
from tests.support.live_thread import LiveThread
from tests.support.wording import Wording


def test_tokens_and_contexts(
    tmp_path: Path, gavel: Gavel, monkeypatch: pytest.MonkeyPatch, no_settings: None, wording: Wording
) -> None:
    """A user logs in with a token, creates one for another user, revokes it; a revoked token is refused."""
    (tmp_path / "daemon").mkdir()
    with LiveThread(tmp_path / "daemon", auth="tokens") as live:
        secret = live.daemon.people.access.create("root", Role.ADMIN, 1000.0)[1]  # type: ignore[union-attr]
        result = gavel("login", "lab", live.address, "--token-stdin", input="wrong\n")
        assert result.exit_code == 5
        # A context is stored only after the scheduler has accepted its token.
        assert json.loads(gavel("context", "--json").stdout) == []
        wording(gavel("context").stderr)
        result = gavel("login", "lab", live.address, "--token-stdin", input=f"{secret}\n")
        assert (result.exit_code, live.address in result.stdout) == (0, True)
        wording(result.stdout, address=live.address)
        assert secret not in gavel("context", "--json").stdout
        assert f"* lab  {live.address}\n" == gavel("context").stdout
        result = gavel(
            *("token", "create", "-u", "ada", "--role", "viewer"), *("--valid", "2d", "--note", "reading")
        )
        viewer_secret = result.stdout.strip()
        assert "ada (viewer)" in result.stderr
        wording(result.stderr, id=result.stderr.split()[1], time=re.compile(r"in \w+(?=:)"))
        monkeypatch.setenv("GAVEL_TOKEN", viewer_secret)
        assert json.loads(gavel("status", "--json").stdout)["identity"]["user"] == "ada"
        result = gavel("submit", "--", "true")
        assert result.exit_code == 5
        wording(result.stderr)
        monkeypatch.delenv("GAVEL_TOKEN")
        listed = json.loads(gavel("token", "list", "--json").stdout)
        assert {frozenset(keys(r.Token))} == {frozenset(token) for token in listed}
        (ada,) = [token["id"] for token in listed if token["user"] == "ada"]
        result = gavel("token", "revoke", "nix", ada)
        assert (result.exit_code, ada in result.stdout) == (3, True)
        wording(result.stdout, id=ada)
        monkeypatch.setenv("GAVEL_TOKEN", viewer_secret)
        result = gavel("status")
        assert result.exit_code == 5
        wording(result.stderr, id=ada)
        monkeypatch.delenv("GAVEL_TOKEN")
        # Nodes join with certificates, and this scheduler has no certificate authority.
        assert gavel("token", "join").exit_code == 6
        wording(gavel("context", "lab", "--remove").stdout)
        assert gavel("context", "lab").exit_code == 3


def test_a_token_for_a_node(
    live: LiveThread, gavel: Gavel, monkeypatch: pytest.MonkeyPatch, wording: Wording
) -> None:
    """Standard output is the secret alone, so that it can be piped; its node and lifetime go to standard error."""
    token = r.JoinToken("s3cret", datetime.now(UTC) + timedelta(minutes=59, seconds=30), "sha256:ab")
    calls: list[Any] = []
    monkeypatch.setattr(
        Client, "create_join_token", lambda self, *nodes, **more: calls.append((nodes, more)) or token
    )
    result = gavel("token", "join", "--node", "n9", "--valid", "1h")
    assert (result.stdout, calls) == ("s3cret\n", [(("n9",), {"valid_s": 3600.0})])
    assert [word in result.stderr for word in ("n9", "59m", "sha256:ab")] == [True] * 3
    wording(result.stderr)
    assert set(json.loads(gavel("token", "join", "--json").stdout)) == keys(r.JoinToken)


def test_a_node_is_revoked(
    live: LiveThread, gavel: Gavel, monkeypatch: pytest.MonkeyPatch, wording: Wording
) -> None:
    """Nodes are revoked by name, tokens by id; a command that names neither is refused."""
    calls: list[str] = []

    def revoked(self: Client, node: str) -> r.RevokedNode:
        calls.append(node)
        return r.RevokedNode(node, was_linked=node == "n1")

    # This scheduler uses neither certificates nor tokens.
    assert gavel("token", "revoke", "--node", "n1").exit_code == 6
    assert gavel("token", "unrevoke", "n1").exit_code == 6
    monkeypatch.setattr(Client, "revoke_node", revoked)
    result = gavel("token", "revoke", "--node", "n1", "--node", "n2")
    assert (result.exit_code, result.stdout.count("\n")) == (0, 2)
    wording(result.stdout)
    result = gavel("token", "revoke", "--node", "n2", "--json")
    assert json.loads(result.stdout) == {
        "tokens": [],
        "nodes": [{"node": "n2", "was_linked": False}],
        "failed": [],
    }
    assert calls == ["n1", "n2", "n2"]
    result = gavel("token", "revoke")
    assert (result.exit_code, "--node" in result.stderr) == (2, True)
    wording(result.stderr)


def test_revoked_nodes_are_listed_and_taken_back(
    tmp_path: Path, gavel: Gavel, monkeypatch: pytest.MonkeyPatch, wording: Wording
) -> None:
    """Revoked nodes are listed with the time and whether they joined again; only a revoked node is taken back."""
    with LiveThread(tmp_path, auth="tokens") as live:
        access = live.daemon.people.access
        assert access is not None
        monkeypatch.setenv("GAVEL_ADDRESS", live.address)
        monkeypatch.setenv("GAVEL_TOKEN", access.create("root", Role.ADMIN, 600.0)[1])
        empty = gavel("token", "revoked")
        assert (empty.exit_code, empty.stdout) == (0, "")
        wording(empty.stderr)
        access.revoke_node("n2")
        access.revoke_node("n1")
        listed = json.loads(gavel("token", "revoked", "--json").stdout)
        assert [(node["node"], node["joined_again"]) for node in listed] == [("n1", False), ("n2", False)]
        assert datetime.fromisoformat(listed[0]["revoked"]).utcoffset() is not None
        assert [line.split()[0] for line in gavel("token", "revoked").stdout.splitlines()] == [
            "node",
            "n1",
            "n2",
        ]
        result = gavel("token", "unrevoke", "n1", "n3", "--json")
        answer = json.loads(result.stdout)
        assert (result.exit_code, answer["nodes"]) == (3, ["n1"])
        assert [(failure["node"], failure["reason"]) for failure in answer["failed"]] == [("n3", "not_found")]
        assert [node["node"] for node in json.loads(gavel("token", "revoked", "--json").stdout)] == ["n2"]
        monkeypatch.setenv("GAVEL_TOKEN", access.create("opa", Role.OPERATOR, 600.0)[1])
        assert gavel("token", "revoked").exit_code == gavel("token", "unrevoke", "n2").exit_code == 5
    calls = [json.loads(line)["call"] for line in (tmp_path / "audit.log").read_text().splitlines()]
    assert calls.count("Access/UnrevokeNode") == 3
