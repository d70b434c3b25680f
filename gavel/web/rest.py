"""REST over the protocol: one handler for every route of the table."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from http import HTTPStatus
from typing import Any

import msgspec
from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import Response

from gavel.client.calls import Method
from gavel.client.errors import NotAuthenticated
from gavel.client.jobs.errors import with_place
from gavel.client.jobs.spec import JobSpec
from gavel.web.bodies import (
    INLINE_MAX,
    Content,
    body,
    check_is_json,
    content_of,
    json_in,
    media_type_of,
    sent,
    shared_response,
)
from gavel.web.callers import Caller, Callers
from gavel.web.job_files import FILE_BYTES_MAX, YAML, jobs_in
from gavel.web.json_messages import fill, fill_from_query, invalid, to_json
from gavel.web.problems import Problem
from gavel.web.routes import ROUTES, WHOLE, Route
from gavel.web.upstream import Recent, Upstream

KEY = "Idempotency-Key"
# How many answers are shared at a time, such as those for other periods of time.
SHARED_MAX = 32
SUBMIT, PREVIEW = "Jobs/SubmitJobs", "Jobs/PreviewJobs"
Handler = Callable[[Request], Awaitable[Response]]


class Rest:
    """Answers the routes of the table."""

    def __init__(self, upstream: Upstream, callers: Callers) -> None:
        self._upstream, self._callers = upstream, callers
        self._shared: Recent[tuple[str, bytes], Content] = Recent(SHARED_MAX)
        # One large body at a time is read, in a thread: it takes long, and others are answered meanwhile.
        self._reading = asyncio.Semaphore(1)

    def handlers(self) -> list[tuple[Route, Handler]]:
        """Return each route with its handler."""
        return [(route, self._handler(route)) for route in ROUTES]

    def _handler(self, route: Route) -> Handler:
        method: Method[Any] = Method(route.method, lambda reply: reply)

        async def answer(request: Request) -> Response:
            caller = await self._callers.enter(request)
            message = method.request_type()
            specs = await self._fill(route, message, request, caller)
            call = replace(method.with_request(message), place=partial(with_place, specs))
            if route.shared_s:
                return await self._shared_answer(route, call, request)
            try:
                reply = await self._upstream.call(call, caller.token)
            except NotAuthenticated:
                self._upstream.forget(caller.token)
                raise
            return await sent(request, to_json(reply))

        return answer

    async def _shared_answer(self, route: Route, call: Any, request: Request) -> Response:
        """Answer with what every viewer may see, which the scheduler is asked for once for all callers."""

        async def ask() -> Content:
            reply = await self._upstream.shared(call)
            return await content_of(msgspec.json.encode(to_json(reply)))

        key = (route.method, call.request.SerializeToString(deterministic=True))
        return shared_response(request, await self._shared.get(key, ask, route.shared_s))

    # -------------------------------------------------------------------------------------------------- requests

    async def _fill(self, route: Route, message: Any, request: Request, caller: Caller) -> Sequence[JobSpec]:
        """Fill a request from the path, the parameters and the body. If the body is a job file, return its jobs."""
        specs: Sequence[JobSpec] = ()
        if route.changes:
            if request.query_params:
                raise invalid(next(iter(request.query_params))[:200], "there is no such parameter")
        else:
            _fill_query(route, message, request.query_params)
        if route.method in (SUBMIT, PREVIEW) and media_type_of(request) in YAML:
            raw = await body(request, FILE_BYTES_MAX)
            async with self._reading:
                specs, messages = await asyncio.to_thread(jobs_in, raw)
            message.specs.extend(messages)
        elif route.body and not (route.is_body_optional and _has_no_body(request)):
            part = message if route.body == WHOLE else getattr(message, route.body)
            await self._fill_from_body(part, request)
        if route.method == SUBMIT:
            message.idempotency_key = _key_of(request, caller, message.idempotency_key)
        fill(message, {**request.path_params, **route.values})
        return specs

    async def _fill_from_body(self, message: Any, request: Request) -> None:
        check_is_json(request)
        raw = await body(request)
        if len(raw) <= INLINE_MAX:
            fill(message, json_in(raw))
            return
        async with self._reading:
            await asyncio.to_thread(lambda: fill(message, json_in(raw)))


def _fill_query(route: Route, message: Any, parameters: QueryParams) -> None:
    pairs = [(name, value) for name, value in parameters.multi_items() if name not in route.variables]
    if len(pairs) != len(parameters.multi_items()):
        raise invalid(next(name for name in parameters if name in route.variables), "is given by the path")
    if not route.query:
        fill_from_query(message, pairs)
        return
    part = getattr(message, route.query)
    inside = part.DESCRIPTOR.fields_by_name
    fill_from_query(part, [pair for pair in pairs if pair[0] in inside])
    fill_from_query(message, [pair for pair in pairs if pair[0] not in inside])


def _has_no_body(request: Request) -> bool:
    headers = request.headers
    return headers.get("content-length", "0") == "0" and "transfer-encoding" not in headers


def _key_of(request: Request, caller: Caller, in_body: str) -> str:
    key = request.headers.get(KEY, in_body)
    if not key and caller.by_cookie:
        detail = f"{KEY}: is missing: a submission that is sent twice must have the same key"
        raise Problem(HTTPStatus.BAD_REQUEST, "invalid", detail, KEY)
    return key
