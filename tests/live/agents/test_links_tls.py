"""An agent speaks for the node that its certificate names; and how a node gets its certificate."""

from __future__ import annotations

import asyncio
import functools
import hashlib
import inspect
import itertools
import os
import random
import re
import shutil
import ssl
import stat
import subprocess
from pathlib import Path

import grpc
import pytest
from grpc import aio

from protos.gavel.v1 import agents_pb2 as pb
from protos.gavel.v1 import agents_pb2_grpc
from scheduler.live.access.audit import Audit
from scheduler.live.access.auth import ByToken
from scheduler.live.access.interceptor import Guard
from scheduler.live.access.limits import CallSlots, PeopleConfig
from scheduler.live.access.roles import Role
from scheduler.live.access.tls import Keys
from scheduler.live.access.tokens import Access
from scheduler.live.agents.join import join_handler
from tests.support.linked import Remembering, Scheduler, story, until
from tests.worker_agent.link.test_stream import hello, linked
from worker_agent.link.join import JoinError, fingerprint_of, join
from worker_agent.link.stream import Dismissed, GrpcLink
from worker_agent.link.target import Target, TargetError


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    """An authority and a server's certificate."""
    new_keys = Keys(tmp_path_factory.mktemp("tls"))
    new_keys.make(["127.0.0.1"])
    return new_keys


def mutual(keys: Keys) -> grpc.ServerCredentials:
    """The credentials of the agents' port."""
    return grpc.ssl_server_credentials([keys.server()], keys.ca_pem, require_client_auth=True)


def certificates(keys: Keys, node: str, into) -> Target:
    """Store in a folder what a node has after it joined."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    request = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([])).sign(key, hashes.SHA256())
    signed = keys.sign_node(request.public_bytes(serialization.Encoding.PEM), node)
    into.mkdir()
    (into / "ca.pem").write_bytes(signed.ca_pem)
    (into / "node.pem").write_bytes(signed.certificate_pem)
    pem = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    (into / "node.key").write_bytes(key.private_bytes(*pem))
    return into


@story
async def test_a_node_with_its_own_certificate_is_let_in(keys, tmp_path):
    """Mutual TLS with the common name node:n1, and Hello as n1."""
    folder = certificates(keys, "n1", tmp_path / "n1")
    async with Scheduler(credentials=mutual(keys)) as scheduler:
        target = Target(address=scheduler.address, certificates=folder)
        async with linked(scheduler.address, target=target):
            await until(lambda: scheduler.links.by_name.get("n1"))


@story
async def test_a_node_cannot_speak_for_another(keys, tmp_path, wording):
    """An agent with n1's certificate under the name n2 is dismissed for good."""
    folder = certificates(keys, "n1", tmp_path / "n1")
    async with Scheduler(credentials=mutual(keys)) as scheduler:
        target = Target(address=scheduler.address, certificates=folder)
        async with linked(scheduler.address, "n2", target=target) as (_, node):
            await until(lambda: len(node.events) == 2)
        assert ("node:n1" in str(node.ended), "node:n2" in str(node.ended)) == (True, True)
        wording(node.ended)
        assert scheduler.state.nodes == {}


@story
async def test_a_certificate_of_another_authority_is_refused(keys, tmp_path, caplog):
    """Neither side trusts the other; the agent logs the remedy and keeps trying."""
    others = Keys(tmp_path / "others")
    others.make(["127.0.0.1"])
    folder = certificates(others, "n1", tmp_path / "n1")
    async with Scheduler(credentials=mutual(keys)) as scheduler:
        target = Target(address=scheduler.address, certificates=folder)
        async with linked(scheduler.address, target=target):
            await until(lambda: "no link to the scheduler" in caplog.text)
        assert scheduler.state.nodes == {}
    assert "gavel agent join" in caplog.text


@story
async def test_an_agent_that_never_joined_logs_that_it_must_join(keys, caplog):
    """On the scheduler's machine it may try without a certificate; the port hangs up, and every line says why."""
    async with Scheduler(credentials=mutual(keys)) as scheduler:
        async with linked(scheduler.address, target=Target(address=scheduler.address)):
            await until(lambda: caplog.text.count("no link to the scheduler") >= 2)
        assert scheduler.state.nodes == {}
    lines = [line for line in caplog.text.splitlines() if "no link to the scheduler" in line]
    assert all("`gavel agent join`" in line for line in lines), lines


@story
async def test_no_call_without_a_certificate_gets_through(keys):
    """The agents' port asks for a certificate before it reads anything."""
    async with Scheduler(credentials=mutual(keys)) as scheduler:
        credentials = grpc.ssl_channel_credentials(keys.ca_pem)
        async with aio.secure_channel(scheduler.address, credentials) as channel:
            stub = agents_pb2_grpc.AgentsStub(channel)
            with pytest.raises(aio.AioRpcError):
                await asyncio.wait_for(stub.SendLogs(iter([pb.SentLogs()])), 10)


@story
async def test_a_node_that_was_revoked_is_cut_off_and_comes_back_with_a_new_certificate_only(
    keys, tmp_path, wording
):
    """Its link ends, its next Hello is answered with the reason, its calls are refused; also after our restart."""
    access = Access(tmp_path / "access.db", lambda: 0.0)
    old = certificates(keys, "n1", tmp_path / "old")
    other = certificates(keys, "n2", tmp_path / "other")
    async with Scheduler(credentials=mutual(keys), revoked=access.is_revoked) as scheduler:
        async with linked(
            scheduler.address, "n2", target=Target(address=scheduler.address, certificates=other)
        ):
            link = GrpcLink(
                Target(address=scheduler.address, certificates=old), hello, chance=random.Random(7)
            )
            node = Remembering(lambda: link.send_hello(()))
            running = asyncio.create_task(link.run(node))
            await until(lambda: scheduler.links.by_name.get("n1") and scheduler.links.by_name.get("n2"))
            access.revoke_node("n1")
            assert scheduler.links.cut_off("n1", "it was revoked")
            with pytest.raises(Dismissed, match="n1") as dismissed:
                await asyncio.wait_for(running, 20.0)
            wording(dismissed.value)
            assert scheduler.links.by_name.get("n1") is None
            assert scheduler.links.by_name.get("n2")
        access.close()
        again = Access(tmp_path / "access.db", lambda: 0.0)
        scheduler.service._revoked = again.is_revoked
        assert await refused(scheduler.address, keys, old)
        new = certificates(keys, "n1", tmp_path / "new")
        # This certificate is from the authority, but the node did not join again.
        assert await refused(scheduler.address, keys, new)
        again.consume_join(again.create_join("n1")[0], "n1", (new / "node.pem").read_bytes())
        async with linked(scheduler.address, target=Target(address=scheduler.address, certificates=new)):
            await until(lambda: scheduler.links.by_name.get("n1"))
        assert await refused(scheduler.address, keys, old)
        assert [(entry.node, entry.joined_again) for entry in again.revoked_nodes()] == [("n1", True)]
        again.unrevoke_node("n1")
        again.close()
        later = Access(tmp_path / "access.db", lambda: 0.0)
        assert later.revoked_nodes() == []
        assert not later.is_revoked("n1", (old / "node.pem").read_bytes())
        later.close()


async def refused(address: str, keys: Keys, folder) -> bool:
    """Whether the calls of this certificate are refused as revoked."""
    own = grpc.ssl_channel_credentials(
        keys.ca_pem, (folder / "node.key").read_bytes(), (folder / "node.pem").read_bytes()
    )
    codes = set()
    async with aio.secure_channel(address, own) as channel:
        stub = agents_pb2_grpc.AgentsStub(channel)
        for call in (
            stub.FetchPackage(pb.FetchPackageRequest(digest="0" * 64)).read(),
            stub.SendLogs(iter([pb.SentLogs()])),
        ):
            with pytest.raises(aio.AioRpcError) as error:
                await call
            codes.add(error.value.code())
    return codes == {grpc.StatusCode.PERMISSION_DENIED}


@story
async def test_the_users_port_takes_no_stream_of_an_agent(keys):
    """No token makes its caller a node where certificates are in use."""
    people = grpc.ssl_server_credentials([keys.server()])
    async with Scheduler(credentials=people) as scheduler:
        credentials = grpc.ssl_channel_credentials(keys.ca_pem)
        async with aio.secure_channel(scheduler.address, credentials) as channel:
            call = agents_pb2_grpc.AgentsStub(channel).Link()
            await call.write(pb.AgentMessage(hello=hello()))
            assert (await call.read()).goodbye.reason == "refused"
            with pytest.raises(aio.AioRpcError) as error:
                await agents_pb2_grpc.AgentsStub(channel).SendLogs(iter([pb.SentLogs()]))
            assert error.value.code() == grpc.StatusCode.PERMISSION_DENIED


@story
async def test_without_tls_the_token_has_to_be_an_agents(tmp_path):
    """On loopback with tokens, an agent's token is let in; a user's and a wrong one are not."""
    access = Access(tmp_path / "access.db", lambda: 0.0)
    secrets = {role: access.create("x", role, 60.0)[1] for role in (Role.AGENT, Role.USER)}
    guard = Guard(
        ByToken(access, lambda: 0.0).recognise,
        Audit(tmp_path / "audit.log", PeopleConfig()),
        CallSlots(PeopleConfig()),
    )
    async with Scheduler(interceptors=(guard,)) as scheduler:

        def with_token(secret: str) -> tuple[tuple[str, str], ...]:
            return (("authorization", f"Bearer {secret}"),)

        async with scheduler.peer(metadata=with_token(secrets[Role.AGENT])) as peer:
            await peer.join()
        for secret, code in (
            (secrets[Role.USER], grpc.StatusCode.PERMISSION_DENIED),
            ("gavel_0_wrong", grpc.StatusCode.UNAUTHENTICATED),
            ("", grpc.StatusCode.UNAUTHENTICATED),
        ):
            async with scheduler.peer("n9", metadata=with_token(secret)) as peer:
                assert await peer.ended() == code
        assert "n9" not in scheduler.state.nodes


@pytest.mark.parametrize("presented", ["", "gavel_0_wrong", "revoked"])
def test_an_agent_that_is_refused_sends_nothing_and_logs_why(
    presented, tmp_path, caplog, monkeypatch, wording
):
    """The log has the scheduler's reason twenty times over; a Hello to a refused call would hide it."""
    monkeypatch.setattr("worker_agent.link.stream.REFUSED_BACKOFF_MAX_S", 0.001)
    access = Access(tmp_path / "access.db", lambda: 0.0)
    token, secret = access.create("x", Role.AGENT, 60.0)
    access.revoke(token.id)
    # A minute passes between attempts, so that none is one too many.
    long_between = itertools.count(0.0, 60.0).__next__
    guard = Guard(
        ByToken(access, long_between).recognise,
        Audit(tmp_path / "audit.log", PeopleConfig()),
        CallSlots(PeopleConfig()),
    )
    hellos = []

    def lines() -> list[str]:
        return [record.getMessage() for record in caplog.records if "no link" in record.getMessage()]

    async def runs_link() -> None:
        async with Scheduler(interceptors=(guard,)) as scheduler:
            target = Target(address=scheduler.address, token=secret if presented == "revoked" else presented)
            link = GrpcLink(target, lambda: hellos.append("hello") or hello())
            node = Remembering(lambda: link.send_hello(()))
            running = asyncio.create_task(link.run(node))
            await until(lambda: len(lines()) >= 20)
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    asyncio.run(asyncio.wait_for(runs_link(), 60.0))
    (reason,) = {line.partition("; again")[0] for line in lines()}
    wording(reason, address=re.compile(r"127\.0\.0\.1:\d+"), id=token.id)
    assert hellos == []


# ---------------------------------------------------------------------------------------------------- joining


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
    """A man in the middle is noticed before anything is sent; the token is still good afterwards."""
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
    """The fingerprint is then checked on the authority in the answer; without the machine's trust nothing is sent."""
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


def test_missing_certificates_are_named(tmp_path):
    """The error names the file that cannot be read, and the command that creates it."""
    with pytest.raises(TargetError, match=r"ca\.pem.*gavel agent join"):
        Target(address="head:7071", certificates=tmp_path).channel()
