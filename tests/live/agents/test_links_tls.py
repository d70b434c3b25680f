"""Who may speak for a node: its certificate says so; and how it comes by one."""

from __future__ import annotations

import asyncio
import functools
import hashlib
import itertools
import os
import random
import ssl
import stat

import grpc
import pytest
from grpc import aio

from protos.gavel.v1 import agents_pb2 as pb
from protos.gavel.v1 import agents_pb2_grpc
from scheduler.live.access.audit import Audit
from scheduler.live.access.auth import ByToken
from scheduler.live.access.interceptor import Guard
from scheduler.live.access.limits import CallPlaces, PeopleConfig
from scheduler.live.access.roles import Role
from scheduler.live.access.tls import Keys
from scheduler.live.access.tokens import Access
from scheduler.live.agents.join import joining
from tests.support.linked import Remembering, Scheduler, story, until
from tests.worker_agent.link.test_stream import hello, linked
from worker_agent.link.join import JoinError, fingerprint_of, join
from worker_agent.link.stream import Dismissed, GrpcLink
from worker_agent.link.target import Target, TargetError


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    """An authority and a server's certificate."""
    made = Keys(tmp_path_factory.mktemp("tls"))
    made.make(["127.0.0.1"])
    return made


def mutual(keys: Keys) -> grpc.ServerCredentials:
    """As the port for agents is served."""
    return grpc.ssl_server_credentials([keys.server()], keys.ca_pem, require_client_auth=True)


def certificates(keys: Keys, node: str, into) -> Target:
    """What a node has after it joined."""
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
    """Mutual TLS, common name node:n1, Hello as n1."""
    folder = certificates(keys, "n1", tmp_path / "n1")
    async with Scheduler(credentials=mutual(keys)) as scheduler:
        target = Target(address=scheduler.address, certificates=folder)
        async with linked(scheduler.address, target=target):
            await until(lambda: scheduler.links.linked("n1"))


@story
async def test_a_node_cannot_speak_for_another(keys, tmp_path, caplog):
    """n1's certificate under the name n2 is sent away for good."""
    folder = certificates(keys, "n1", tmp_path / "n1")
    async with Scheduler(credentials=mutual(keys)) as scheduler:
        target = Target(address=scheduler.address, certificates=folder)
        async with linked(scheduler.address, "n2", target=target) as (_, node):
            await until(lambda: len(node.events) == 2)
        assert "its certificate is for node:n1" in str(node.ended)
        assert scheduler.state.nodes == {}


@story
async def test_a_certificate_of_another_authority_is_no_certificate(keys, tmp_path, caplog):
    """Neither side believes the other; the agent says what to do and tries on."""
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
async def test_an_agent_that_never_joined_is_told_to_join(keys, caplog):
    """On the scheduler's own machine it may try without a certificate; the port hangs up, and the log says why."""
    async with Scheduler(credentials=mutual(keys)) as scheduler:
        async with linked(scheduler.address, target=Target(address=scheduler.address)):
            await until(lambda: caplog.text.count("no link to the scheduler") >= 2)
        assert scheduler.state.nodes == {}
    lines = [line for line in caplog.text.splitlines() if "no link to the scheduler" in line]
    assert all("`gavel agent join`" in line for line in lines), lines


@story
async def test_nobody_without_a_certificate_gets_through(keys):
    """The port for agents asks for one before it listens to anything."""
    async with Scheduler(credentials=mutual(keys)) as scheduler:
        credentials = grpc.ssl_channel_credentials(keys.ca_pem)
        async with aio.secure_channel(scheduler.address, credentials) as channel:
            stub = agents_pb2_grpc.AgentsStub(channel)
            with pytest.raises(aio.AioRpcError):
                await asyncio.wait_for(stub.SendLogs(iter([pb.SentLogs()])), 10)


@story
async def test_a_node_that_was_revoked_is_cut_off_and_comes_back_with_a_new_certificate_only(keys, tmp_path):
    """Its link ends, its next Hello is answered with why, its calls are refused; also after a restart of ours."""
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
            await until(lambda: scheduler.links.linked("n1") and scheduler.links.linked("n2"))
            access.revoke_node("n1")
            assert scheduler.links.cut_off("n1", "it was revoked")
            with pytest.raises(Dismissed, match="the certificate of n1 was revoked: have it join again"):
                await asyncio.wait_for(running, 20.0)
            assert scheduler.links.linked("n1") is None
            assert scheduler.links.linked("n2")
        access.close()
        again = Access(tmp_path / "access.db", lambda: 0.0)
        scheduler.service._revoked = again.is_revoked
        assert await refused(scheduler.address, keys, old)
        new = certificates(keys, "n1", tmp_path / "new")
        assert await refused(scheduler.address, keys, new)  # whoever made it, it was not by joining again
        again.consume_join(again.create_join("n1")[0], "n1", (new / "node.pem").read_bytes())
        async with linked(scheduler.address, target=Target(address=scheduler.address, certificates=new)):
            await until(lambda: scheduler.links.linked("n1"))
        assert await refused(scheduler.address, keys, old)
        assert [(one.node, one.joined_again) for one in again.revoked_nodes()] == [("n1", True)]
        again.unrevoke_node("n1")
        again.close()
        later = Access(tmp_path / "access.db", lambda: 0.0)
        assert later.revoked_nodes() == []
        assert not later.is_revoked("n1", (old / "node.pem").read_bytes())
        later.close()


async def refused(address: str, keys: Keys, folder) -> bool:
    """Whether what this certificate calls is refused to it as revoked."""
    own = grpc.ssl_channel_credentials(
        keys.ca_pem, (folder / "node.key").read_bytes(), (folder / "node.pem").read_bytes()
    )
    said = set()
    async with aio.secure_channel(address, own) as channel:
        stub = agents_pb2_grpc.AgentsStub(channel)
        for call in (
            stub.FetchPackage(pb.FetchPackageRequest(digest="0" * 64)).read(),
            stub.SendLogs(iter([pb.SentLogs()])),
        ):
            with pytest.raises(aio.AioRpcError) as error:
                await call
            said.add(error.value.code())
    return said == {grpc.StatusCode.PERMISSION_DENIED}


@story
async def test_on_the_port_for_people_no_stream_is_taken(keys):
    """With certificates in use, a token does not make a node of anybody."""
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
    """On loopback with tokens: an agent's is let in; a user's and a wrong one are not."""
    access = Access(tmp_path / "access.db", lambda: 0.0)
    secrets = {role: access.create("x", role, 60.0)[1] for role in (Role.AGENT, Role.USER)}
    guard = Guard(
        ByToken(access, lambda: 0.0),
        Audit(tmp_path / "audit.log", PeopleConfig()),
        CallPlaces(PeopleConfig()),
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


@pytest.mark.parametrize("shown", ["", "gavel_0_wrong", "revoked"])
def test_an_agent_that_is_refused_says_nothing_and_tells_why(shown, tmp_path, caplog, monkeypatch):
    """Twenty times over its log has the scheduler's own words: a Hello to a refused call would drown them."""
    monkeypatch.setattr("worker_agent.link.stream.REFUSED_BACKOFF_MAX_S", 0.001)
    access = Access(tmp_path / "access.db", lambda: 0.0)
    token, secret = access.create("x", Role.AGENT, 60.0)
    access.revoke(token.id)
    long_between = itertools.count(0.0, 60.0).__next__  # so that none is one of too many
    guard = Guard(
        ByToken(access, long_between),
        Audit(tmp_path / "audit.log", PeopleConfig()),
        CallPlaces(PeopleConfig()),
    )
    said = []

    def lines() -> list[str]:
        return [record.getMessage() for record in caplog.records if "no link" in record.getMessage()]

    async def told() -> None:
        async with Scheduler(interceptors=(guard,)) as scheduler:
            target = Target(address=scheduler.address, token=secret if shown == "revoked" else shown)
            link = GrpcLink(target, lambda: said.append("hello") or hello())
            node = Remembering(lambda: link.send_hello(()))
            running = asyncio.create_task(link.run(node))
            await until(lambda: len(lines()) >= 20)
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    asyncio.run(asyncio.wait_for(told(), 60.0))
    assert [line for line in lines() if "the token is refused: " not in line] == []
    assert said == []


# ---------------------------------------------------------------------------------------------------- joining


def joins(test):
    """A scheduler that nodes can join, at the port of people."""

    @functools.wraps(test)
    def run(keys, tmp_path):
        async def told() -> None:
            access = Access(tmp_path / "access.db", lambda: 0.0)
            answers = joining(access, keys, lambda: "0.0.0.0:7071")
            credentials = grpc.ssl_server_credentials([keys.server()])
            async with Scheduler(credentials=credentials, joining=answers) as scheduler:
                await asyncio.to_thread(test, scheduler.address, keys, access, tmp_path / "certificates")

        asyncio.run(asyncio.wait_for(told(), 60))

    del run.__wrapped__
    run.__doc__ = test.__doc__
    return run


@joins
def test_a_node_joins_with_token_and_fingerprint(address, keys, access, into):
    """It has a key that only its owner reads, a certificate in its name, and the address where agents link."""
    token, _ = access.create_join("n1")
    joined = join(address, "n1", token, keys.fingerprint(), into)
    assert joined.agents_address == "127.0.0.1:7071"
    assert {path.name for path in into.iterdir()} == {"node.key", "node.pem", "ca.pem"}
    for path in (*into.iterdir(), into):
        assert stat.S_IMODE(os.stat(path).st_mode) & 0o077 == 0
    context = ssl.create_default_context(ssl.Purpose.SERVER_AUTH, cafile=str(into / "ca.pem"))
    context.load_cert_chain(into / "node.pem", into / "node.key")
    with pytest.raises(JoinError, match="is there already"):
        join(address, "n1", token, keys.fingerprint(), into)


@joins
def test_what_a_node_has_got_so_far_can_be_revoked(address, keys, access, into):
    """Its certificate and a token that was made for it; with another token it gets what counts, until the next time."""

    def counts(folder) -> bool:
        return not access.is_revoked("n1", (folder / "node.pem").read_bytes())

    first, second = into, into.with_name("second")
    join(address, "n1", access.create_join("n1")[0], keys.fingerprint(), first)
    made_before, _ = access.create_join("n1")
    assert counts(first)
    access.revoke_node("n1")
    assert not counts(first)
    with pytest.raises(JoinError, match="not known"):
        join(address, "n1", made_before, keys.fingerprint(), second)
    join(address, "n1", access.create_join("n1")[0], keys.fingerprint(), second)
    assert (counts(first), counts(second)) == (False, True)
    access.revoke_node("n1")
    assert (counts(first), counts(second)) == (False, False)


@joins
def test_a_scheduler_of_another_fingerprint_never_sees_the_token(address, keys, access, into):
    """Somebody in between is noticed before anything is said; the token is still good afterwards."""
    token, _ = access.create_join("n1")
    wrong = hashlib.sha256(b"somebody else").hexdigest()
    with pytest.raises(JoinError, match="is not the scheduler of this fingerprint"):
        join(address, "n1", token, f"sha256:{wrong}", into)
    assert not into.exists()
    join(address, "n1", token, keys.fingerprint().upper().replace("SHA256", "sha256"), into)


@joins
def test_a_token_that_is_wrong_or_used_is_refused_in_words(address, keys, access, into):
    """One token, one node, once; nothing is left on the node that was refused."""
    token, _ = access.create_join("n1")
    for node, secret, words in (("n1", "gavel_1_no", "not known"), ("n2", token, "another node")):
        with pytest.raises(JoinError, match=words):
            join(address, node, secret, keys.fingerprint(), into)
    join(address, "n1", token, keys.fingerprint(), into)
    with pytest.raises(JoinError, match="already used"):
        join(address, "n1", token, keys.fingerprint(), into.with_name("second"))
    assert not into.with_name("second").exists()


def test_a_certificate_that_was_bought_is_believed_as_this_machine_does(keys, tmp_path, monkeypatch):
    """The fingerprint is then checked on the authority in the answer; without the machine's trust nothing is sent."""
    bought = Keys(tmp_path / "bought")
    bought.make(["127.0.0.1"])
    access = Access(tmp_path / "access.db", lambda: 0.0)
    token, _ = access.create_join("n1")
    leaf = (tmp_path / "bought" / "server.pem").read_bytes()
    credentials = grpc.ssl_server_credentials([(bought.server()[0], leaf)])

    async def told() -> None:
        answers = joining(access, keys, lambda: "127.0.0.1:7071")
        async with Scheduler(credentials=credentials, joining=answers) as scheduler:
            ask = functools.partial(join, scheduler.address, "n1", token)
            with pytest.raises(JoinError, match="is not the scheduler of this fingerprint"):
                await asyncio.to_thread(ask, keys.fingerprint(), tmp_path / "c")
            monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "bought" / "ca.pem"))
            joined = await asyncio.to_thread(ask, keys.fingerprint(), tmp_path / "c")
            assert (joined.certificates / "ca.pem").read_bytes() == keys.ca_pem

    asyncio.run(asyncio.wait_for(told(), 60))


def test_a_scheduler_that_is_not_there_or_speaks_no_tls_is_named(tmp_path):
    """A port nobody listens on: one line with the address."""
    with pytest.raises(JoinError, match=r"127\.0\.0\.1:1 cannot be reached with TLS"):
        join("127.0.0.1:1", "n1", "t", "sha256:" + "0" * 64, tmp_path / "c")


@pytest.mark.parametrize("text", ["", "sha256:", "ab" * 31, "sha1:" + "ab" * 32, "zz" * 32])
def test_a_fingerprint_has_a_form(text):
    """Anything but 64 hexadecimal digits is refused before anybody is spoken to."""
    with pytest.raises(JoinError, match="--ca-fingerprint"):
        fingerprint_of(text)


def test_missing_certificates_are_named(tmp_path):
    """The file that cannot be read, and what makes it."""
    with pytest.raises(TargetError, match=r"ca\.pem.*gavel agent join"):
        Target(address="head:7071", certificates=tmp_path).channel()
