"""How a node joins: it exchanges a one-time token and a certificate request for a certificate."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from protos.gavel.v1 import agents_pb2 as pb
from scheduler.live.access.limits import Buckets
from scheduler.live.access.status import TOO_MANY, UNAUTHENTICATED, CallFailed
from scheduler.live.access.tls import Keys
from scheduler.live.access.tokens import Access, BadToken
from scheduler.model.cluster import NodeSpec

# How many wrong tokens are tolerated, at once and per second, from all callers together: before they have joined, they
# cannot be told apart.
FAILURES_BURST, FAILURES_PER_S = 20.0, 1.0


def join_handler(
    access: Access, keys: Keys, agents_address: Callable[[], str]
) -> Callable[[pb.JoinRequest], Awaitable[pb.JoinResponse]]:
    """Return the handler of Agents.Join. A request whose certificate cannot be signed does not use up its token."""
    failures = Buckets(FAILURES_PER_S, FAILURES_BURST, access.now_s)

    async def join(request: pb.JoinRequest) -> pb.JoinResponse:
        wait_s = failures.wait_s("all")
        if wait_s > 0:
            raise CallFailed(TOO_MANY, "too many wrong join tokens; try again later", retry_s=wait_s)
        NodeSpec(name=request.node, worker_type="any", gpus=1).checked()
        signed = await asyncio.to_thread(keys.sign_node, request.certificate_request_pem, request.node)
        try:
            await asyncio.to_thread(access.consume_join, request.token, request.node, signed.certificate_pem)
        except BadToken as error:
            failures.take("all")
            raise CallFailed(UNAUTHENTICATED, str(error), "token") from None
        return pb.JoinResponse(
            certificate_pem=signed.certificate_pem, ca_pem=signed.ca_pem, agents_address=agents_address()
        )

    return join
