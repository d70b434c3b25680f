"""An agent speaks only for the node that its certificate names."""

from __future__ import annotations

import asyncio
import itertools
import random
import re

import grpc
import pytest
from grpc import aio

from protos.gavel.v1 import agents_pb2 as pb
from protos.gavel.v1 import agents_pb2_grpc
from scheduler.live.access.audit import Audit
from scheduler.live.access.auth import ByToken
from scheduler.live.access.interceptor import Guard
from scheduler.live.access.limits import CallSlots
from scheduler.live.access.people import PeopleConfig
from scheduler.live.access.roles import Role
from scheduler.live.access.tls import Keys
from scheduler.live.access.tokens import Access
from tests.support.linked import Remembering, Scheduler, on_event_loop, until
from tests.worker_agent.link.test_stream import hello, linked
from worker_agent.link.stream import Dismissed, GrpcLink
from worker_agent.link.target import Target, TargetError


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


@on_event_loop
async def test_a_node_with_its_own_certificate_is_let_in(keys, tmp_path):
    """Mutual TLS with the common name node:n1, and Hello as n1."""
    folder = certificates(keys, "n1", tmp_path / "n1")
    async with Scheduler(credentials=mutual(keys)) as scheduler:
        target = Target(address=scheduler.address, certificates=folder)
        async with linked(scheduler.address, target=target):
            await until(lambda: scheduler.links.by_name.get("n1"))


@on_event_loop
async def test_a_node_cannot_speak_for_another(keys, tmp_path, wording):
    """An agent with n1's certificate that calls itself n2 is dismissed for good."""
    folder = certificates(keys, "n1", tmp_path / "n1")
    async with Scheduler(credentials=mutual(keys)) as scheduler:
        target = Target(address=scheduler.address, certificates=folder)
        async with linked(scheduler.address, "n2", target=target) as (_, node):
            await until(lambda: len(node.events) == 2)
        assert ("node:n1" in str(node.ended), "node:n2" in str(node.ended)) == (True, True)
        wording(node.ended)
        assert scheduler.state.nodes == {}


@on_event_loop
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


@on_event_loop
async def test_an_agent_that_never_joined_logs_that_it_must_join(keys, caplog):
    """A local agent may try without a certificate; it is refused, and every line has the reason."""
    async with Scheduler(credentials=mutual(keys)) as scheduler:
        async with linked(scheduler.address, target=Target(address=scheduler.address)):
            await until(lambda: caplog.text.count("no link to the scheduler") >= 2)
        assert scheduler.state.nodes == {}
    lines = [line for line in caplog.text.splitlines() if "no link to the scheduler" in line]
    assert all("`gavel agent join`" in line for line in lines), lines


@on_event_loop
async def test_no_call_without_a_certificate_gets_through(keys):
    """The agents' port asks for a certificate before it reads anything."""
    async with Scheduler(credentials=mutual(keys)) as scheduler:
        credentials = grpc.ssl_channel_credentials(keys.ca_pem)
        async with aio.secure_channel(scheduler.address, credentials) as channel:
            stub = agents_pb2_grpc.AgentsStub(channel)
            with pytest.raises(aio.AioRpcError):
                await asyncio.wait_for(stub.SendLogs(iter([pb.SentLogs()])), 10)


@on_event_loop
async def test_a_node_that_was_revoked_is_cut_off_and_comes_back_with_a_new_certificate_only(
    keys, tmp_path, wording
):
    """The link ends, the next Hello gets the reason and other calls are refused, even by a restarted scheduler."""
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
    """Return whether calls with this certificate are refused as revoked."""
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


@on_event_loop
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


@on_event_loop
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
    """The log has the scheduler's reason for each of twenty attempts; a Hello on a refused call would hide it."""
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


def test_missing_certificates_are_named(tmp_path):
    """The error names the file that cannot be read, and the command that creates it."""
    with pytest.raises(TargetError, match=r"ca\.pem.*gavel agent join"):
        Target(address="head:7071", certificates=tmp_path).channel()
