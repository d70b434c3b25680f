"""The application: which address is answered by what."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from http import HTTPStatus
from pathlib import Path
from typing import Any

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match, Router
from starlette.routing import Route as Path_
from starlette.types import ASGIApp, Receive, Scope, Send

from gavel.client import calls
from gavel.client.transport.following import Reading
from gavel.client.views.job_details import rates
from gavel.web import streams
from gavel.web.assets import FOLDER, INDEX, Assets
from gavel.web.bodies import JSON, Content, content_of, sent, shared_response
from gavel.web.callers import Callers
from gavel.web.door import Door
from gavel.web.json_messages import fill_from_query, invalid, to_json
from gavel.web.mirror import Mirror
from gavel.web.problems import RETRY_S, Problem, not_allowed
from gavel.web.rest import Rest
from gavel.web.sessions import Seal
from gavel.web.upstream import Upstream
from gavel.web.views import VIEWS, View
from protos.gavel.v1 import jobs_pb2 as j

# The addresses of the page, which shows what belongs to each.
PAGES = ("/", "/login", "/queue", "/jobs/{id}", "/nodes", "/nodes/{name}", "/rounds", "/fairness", "/use")
OPENAPI = Path(__file__).parent / "openapi.json"
TAIL_LINES = 1000
# The parameter that has the id of the last event where a browser cannot send Last-Event-ID.
AFTER = "after"


class Gateway:
    """Answers the addresses that are not in the table of REST: pages, views of the mirror, logs."""

    def __init__(self, upstream: Upstream, seal: Seal, pages: Path = FOLDER) -> None:
        self.upstream, self.mirror = upstream, Mirror(upstream)
        self.callers = Callers(upstream, seal, lambda: self.mirror.status.get("version", ""))
        self.assets = Assets(pages)
        self.stopping = asyncio.Event()
        # The queue as JSON, as of this event.
        self._queue: tuple[str, Content] | None = None
        self._encoding = asyncio.Lock()

    # ---------------------------------------------------------------------------------------------------- pages

    async def page(self, request: Request) -> Response:
        """Answer with the page, which finds out by its address what to show."""
        return self._asset(request, INDEX)

    async def asset(self, request: Request) -> Response:
        """Answer with a file of the page."""
        return self._asset(request, request.path_params["path"])

    def _asset(self, request: Request, name: str) -> Response:
        content = self.assets.get(name)
        if content is None:
            raise HTTPException(HTTPStatus.NOT_FOUND)
        return shared_response(request, content)

    async def openapi(self, request: Request) -> Response:
        """Answer with the description of REST."""
        return shared_response(request, await content_of(OPENAPI.read_bytes()))

    # ------------------------------------------------------------------------------------------- views of the mirror

    async def queue(self, request: Request) -> Response:
        """Answer with all unfinished jobs, as columns."""
        await self.callers.enter(request)
        async with self._encoding:
            key = f"{self.mirror.events.last_id} {self.mirror.stale_since_s}"
            if self._queue is None or self._queue[0] != key:
                self._queue = key, await content_of(msgspec.json.encode(self._received(self.mirror.queue())))
        return shared_response(request, self._queue[1])

    async def overview(self, request: Request) -> Response:
        """Answer with the figures of the cluster."""
        await self.callers.enter(request)
        return await sent(request, self._received(self.mirror.with_position(self.mirror.overview())))

    async def current_round(self, request: Request) -> Response:
        """Answer with the round that runs."""
        await self.callers.enter(request)
        return await sent(request, self._received(to_json(self.mirror.round)))

    def _received(self, data: dict[str, Any]) -> dict[str, Any]:
        if not self.mirror.has_been_live:
            detail = "the gateway has not received the queue from the scheduler yet"
            raise Problem(HTTPStatus.SERVICE_UNAVAILABLE, "unavailable", detail, retry_s=RETRY_S)
        return data

    async def events(self, request: Request) -> ASGIApp:
        """Answer with the changes of the mirror, as they happen."""
        token = (await self.callers.enter_stream(request)).token
        pieces = streams.changes(
            self.mirror.events, _last_event(request), lambda: self.callers.identity(token)
        )
        return self._stream(token, pieces)

    def _stream(
        self, token: str, pieces: AsyncIterator[bytes], media_type: str = streams.EVENT_STREAM, file: str = ""
    ) -> streams.Stream:
        return streams.Stream(pieces, self.stopping, self.callers.limits.stream(token), media_type, file)

    # ------------------------------------------------------------------------------------------------ words, logs

    async def measured(self, request: Request) -> Response:
        """Answer with the rate of a packed job and what a job has measured, in the words of `gavel show`."""
        caller = await self.callers.enter(request)
        job = await self.upstream.call(calls.get(job=request.path_params["job"]), caller.token)
        return await sent(request, list(rates(job)))

    async def logs(self, request: Request) -> ASGIApp:
        """Answer with the output of a job as events."""
        read = streams.positions_in(_last_event(request) or "")
        token, wanted, chunks = await self._log(request, read or {}, TAIL_LINES)
        limit = None if wanted.follow else streams.LOG_BYTES_MAX
        return self._stream(token, streams.log_events(chunks, streams.LogEvents(read), limit))

    async def log_file(self, request: Request) -> ASGIApp:
        """Answer with the whole output of a job, as a file."""
        token, wanted, chunks = await self._log(request, {}, None)
        file = f"job-{''.join(letter for letter in wanted.job if letter.isalnum() or letter == '_')}.log"
        return self._stream(token, streams.log_text(chunks), "text/plain", file)

    async def _log(
        self, request: Request, read: dict[tuple[int, int], int], tail_lines: int | None
    ) -> tuple[str, j.ReadLogsRequest, AsyncIterator[Any]]:
        """Return the caller's token, what is wanted, and the output after what has been read.

        Errors are raised before any of it.
        """
        token = (await self.callers.enter_stream(request)).token
        query = [(name, value) for name, value in request.query_params.multi_items() if name != AFTER]
        wanted = fill_from_query(j.ReadLogsRequest(), query)
        if wanted.job:
            raise invalid("job", "is given by the path")
        wanted.job = request.path_params["job"]
        tail = wanted.tail_lines if wanted.HasField("tail_lines") else tail_lines
        rank = wanted.rank if wanted.HasField("rank") else None
        reading = Reading(wanted.job, wanted.attempt, rank, tail, wanted.follow, read)
        return token, wanted, await streams.begun(self.upstream.stream(reading.call(), token), reading)


def _last_event(request: Request) -> str | None:
    """Return the id of the last event that the browser has received on this stream."""
    return request.headers.get("last-event-id") or request.query_params.get(AFTER)


def _handler(name: str, *owners: object) -> Any:
    """Return the method of this name of the first owner that has it."""
    return next(getattr(owner, name) for owner in owners if hasattr(owner, name))


def application(gateway: Gateway, names: Iterable[str]) -> ASGIApp:
    """Return the whole application. `names`: the host names of the gateway besides those of loopback."""
    callers = gateway.callers
    rest = Rest(gateway.upstream, callers)
    routes = [
        *(Path_(path, gateway.page) for path in PAGES),
        Path_("/assets/{path:path}", gateway.asset),
        Path_("/openapi.json", gateway.openapi),
        *(_path_of(view, _handler(view.handler, gateway, callers)) for view in VIEWS),
        *(Path_(route.path, handler, methods=[route.verb]) for route, handler in rest.handlers()),
    ]
    return Door(_with_verbs(Router(routes, redirect_slashes=False)), names)


def _path_of(view: View, handler: Any) -> Path_:
    path = Path_(view.path, handler, methods=[view.verb])
    # Starlette answers HEAD as it answers GET, and a stream would have no end.
    if view.media_type != JSON:
        path.methods = {view.verb}
    return path


def _with_verbs(router: Router) -> ASGIApp:
    """Return the application that names the verbs of an address when it is asked for another one."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await router(scope, receive, send)
        except HTTPException as error:
            if error.status_code != HTTPStatus.METHOD_NOT_ALLOWED:
                raise
            paths = [path for path in router.routes if isinstance(path, Path_)]
            verbs = (path.methods or () for path in paths if path.matches(scope)[0] is not Match.NONE)
            raise not_allowed(scope["method"][:20], ", ".join(sorted(set().union(*verbs)))) from None

    return app
