"""How a node gets its certificate: a token that is valid once, and the fingerprint of the scheduler's authority."""

from __future__ import annotations

import asyncio
import functools
import hashlib
import inspect
import os
import re
import shutil
import ssl
import stat
import subprocess
from pathlib import Path

import grpc
import pytest

from scheduler.live.access.tls import Keys
from scheduler.live.access.tokens import Access
from scheduler.live.agents.join import join_handler
from tests.support.linked import Scheduler
from worker_agent.link.join import JoinError, fingerprint_of, join


def joins(test):
    """Run this test against a scheduler that nodes can join at the users' port."""

    @functools.wraps(test)
    def run(keys, tmp_path, **fixtures):
        async def serve_and_test() -> None:
            access = Access(tmp_path / "access.db", lambda: 0.0)
            answers = join_handler(access, keys, lambda: "0.0.0.0:7071")
            credentials = grpc.ssl_server_credentials([keys.server()])
            async with Scheduler(credentials=credentials, joining=answers) as scheduler:
                folder = tmp_path / "certificates"
                await asyncio.to_thread(test, scheduler.address, keys, access, folder, **fixtures)

        asyncio.run(asyncio.wait_for(serve_and_test(), 60))

    names = ["keys", "tmp_path", *(name for name in inspect.signature(test).parameters if name == "wording")]
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    run.__signature__ = inspect.Signature([inspect.Parameter(name, kind) for name in names])
    return run


@joins
def test_a_node_joins_with_token_and_fingerprint(address, keys, access, into):
    """The node gets a key that only its owner can read, a certificate in its name, and the address for agents."""
    token, _ = access.create_join("n1")
    joined = join(address, "n1", token, keys.fingerprint(), into)
    assert joined.agents_address == "127.0.0.1:7071"
    assert {path.name for path in into.iterdir()} == {"node.key", "node.pem", "ca.pem"}
    for path in (*into.iterdir(), into):
        assert stat.S_IMODE(os.stat(path).st_mode) & 0o077 == 0
    context = ssl.create_default_context(ssl.Purpose.SERVER_AUTH, cafile=str(into / "ca.pem"))
    context.load_cert_chain(into / "node.pem", into / "node.key")
    with pytest.raises(JoinError, match="exists already"):
        join(address, "n1", token, keys.fingerprint(), into)


@joins
def test_all_certificates_of_a_node_so_far_are_revoked_together(address, keys, access, into):
    """Its certificate and its open join token are revoked; with a new token it gets a good certificate."""

    def counts(folder) -> bool:
        return not access.is_revoked("n1", (folder / "node.pem").read_bytes())

    first, second = into, into.with_name("second")
    join(address, "n1", access.create_join("n1")[0], keys.fingerprint(), first)
    earlier_token, _ = access.create_join("n1")
    assert counts(first)
    access.revoke_node("n1")
    assert not counts(first)
    with pytest.raises(JoinError, match="not known"):
        join(address, "n1", earlier_token, keys.fingerprint(), second)
    join(address, "n1", access.create_join("n1")[0], keys.fingerprint(), second)
    assert (counts(first), counts(second)) == (False, True)
    access.revoke_node("n1")
    assert (counts(first), counts(second)) == (False, False)


@joins
def test_a_scheduler_of_another_fingerprint_never_sees_the_token(address, keys, access, into, wording):
    """A man in the middle is noticed before anything is sent, and the token stays valid."""
    token, _ = access.create_join("n1")
    wrong = hashlib.sha256(b"another scheduler").hexdigest()
    with pytest.raises(JoinError) as failed:
        join(address, "n1", token, f"sha256:{wrong}", into)
    wording(failed.value, address=address, fingerprint=re.compile(r"[0-9a-f]{64}"))
    assert not into.exists()
    join(address, "n1", token, keys.fingerprint().upper().replace("SHA256", "sha256"), into)


@joins
def test_a_token_that_is_wrong_or_used_is_refused_with_the_reason(address, keys, access, into):
    """A token is for one node, once; a refused node keeps no files."""
    token, _ = access.create_join("n1")
    for node, secret, words in (("n1", "gavel_1_no", "not known"), ("n2", token, "another node")):
        with pytest.raises(JoinError, match=words):
            join(address, node, secret, keys.fingerprint(), into)
    join(address, "n1", token, keys.fingerprint(), into)
    with pytest.raises(JoinError, match="already used"):
        join(address, "n1", token, keys.fingerprint(), into.with_name("second"))
    assert not into.with_name("second").exists()


def trust_file(authority: Path) -> dict[str, str]:
    """Return the environment of a machine whose trusted authorities are in one file."""
    return {"SSL_CERT_FILE": str(authority)}


def trust_directory(authority: Path) -> dict[str, str]:
    """Return the environment of a machine whose trusted authorities are files named by the hash of their subject."""
    if shutil.which("openssl") is None:
        pytest.skip("needs openssl")
    command = ["openssl", "x509", "-hash", "-noout", "-in", str(authority)]
    subject = subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
    folder = authority.parent / "trusted"
    folder.mkdir()
    (folder / f"{subject}.0").write_bytes(authority.read_bytes())
    return {"SSL_CERT_FILE": "/no/such/file", "SSL_CERT_DIR": str(folder)}


@pytest.mark.parametrize("trust", [trust_file, trust_directory])
def test_a_bought_certificate_is_trusted_as_this_machine_trusts_it(
    keys, tmp_path, monkeypatch, wording, trust
):
    """The fingerprint is checked against the authority in the reply; without the machine's trust nothing is sent."""
    bought = Keys(tmp_path / "bought")
    bought.make(["127.0.0.1"])
    access = Access(tmp_path / "access.db", lambda: 0.0)
    token, _ = access.create_join("n1")
    leaf = (tmp_path / "bought" / "server.pem").read_bytes()
    credentials = grpc.ssl_server_credentials([(bought.server()[0], leaf)])

    async def joins_twice() -> None:
        answers = join_handler(access, keys, lambda: "127.0.0.1:7071")
        async with Scheduler(credentials=credentials, joining=answers) as scheduler:
            ask = functools.partial(join, scheduler.address, "n1", token)
            with pytest.raises(JoinError) as failed:
                await asyncio.to_thread(ask, keys.fingerprint(), tmp_path / "c")
            wording(failed.value, address=scheduler.address, fingerprint=re.compile(r"[0-9a-f]{64}"))
            for name, value in trust(tmp_path / "bought" / "ca.pem").items():
                monkeypatch.setenv(name, value)
            joined = await asyncio.to_thread(ask, keys.fingerprint(), tmp_path / "c")
            assert (joined.certificates / "ca.pem").read_bytes() == keys.ca_pem

    asyncio.run(asyncio.wait_for(joins_twice(), 60))


def test_a_scheduler_that_is_away_or_speaks_no_tls_is_named(tmp_path, wording):
    """The error is one line with the address of the port on which nothing listens."""
    with pytest.raises(JoinError, match=r"127\.0\.0\.1:1 ") as failed:
        join("127.0.0.1:1", "n1", "t", "sha256:" + "0" * 64, tmp_path / "c")
    wording(failed.value)


@pytest.mark.parametrize("text", ["", "sha256:", "ab" * 31, "sha1:" + "ab" * 32, "zz" * 32])
def test_a_fingerprint_has_a_form(text):
    """Anything but 64 hexadecimal digits is refused before any connection."""
    with pytest.raises(JoinError, match="--ca-fingerprint"):
        fingerprint_of(text)
