"""Bodies of requests and answers: JSON in, JSON out, compressed where that pays."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, NamedTuple

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from gavel.web.problems import Problem, too_large

JSON = "application/json"
# Smaller bodies are not worth compressing; larger ones are compressed, or read, in a thread.
COMPRESSED_MIN, INLINE_MAX = 1000, 50_000
BODY_BYTES_MAX = 16 * 2**20
# How many objects and lists a body may have: those of 10,000 jobs are some 50,000.
PARTS_MAX = 400_000
_LEVEL = 6


class Content(NamedTuple):
    """A body that several answers share: as it is, compressed, and its tag."""

    raw: bytes
    compressed: bytes
    etag: str
    media_type: str = JSON


async def content_of(raw: bytes) -> Content:
    """Return JSON with its compressed form; large JSON is compressed in a thread."""
    if len(raw) <= INLINE_MAX:
        return content_now(raw)
    return await asyncio.to_thread(content_now, raw)


def content_now(raw: bytes, media_type: str = JSON) -> Content:
    """Return a body with its compressed form, which is empty if that does not pay."""
    compressed = gzip.compress(raw, _LEVEL, mtime=0) if len(raw) >= COMPRESSED_MIN else b""
    return Content(raw, compressed, f'"{hashlib.sha256(raw).hexdigest()[:32]}"', media_type)


def shared_response(request: Request, content: Content, headers: Mapping[str, str] = {}) -> Response:
    """Return a body as a response; 304 if the browser has it already."""
    headers = {"Cache-Control": "no-cache", "ETag": content.etag, "Vary": "Accept-Encoding", **headers}
    if content.etag in request.headers.get("if-none-match", ""):
        return Response(status_code=HTTPStatus.NOT_MODIFIED, headers=headers)
    return _response(request, content, headers)


async def sent(request: Request, data: Any) -> Response:
    """Return JSON data as a response, compressed if that pays and the caller can read it."""
    return _response(request, await content_of(msgspec.json.encode(data)), {"Vary": "Accept-Encoding"})


def _response(request: Request, content: Content, headers: Mapping[str, str]) -> Response:
    if content.compressed and "gzip" in request.headers.get("accept-encoding", ""):
        return Response(
            content.compressed, headers={**headers, "Content-Encoding": "gzip"}, media_type=content.media_type
        )
    return Response(content.raw, headers=dict(headers), media_type=content.media_type)


def json_response(data: Any) -> Response:
    """Return a small piece of JSON data as a response."""
    return Response(msgspec.json.encode(data), media_type=JSON)


def media_type_of(request: Request) -> str:
    """Return the type of a request's body, without its parameters."""
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


async def json_body(request: Request, size_max: int) -> Any:
    """Return the JSON in the body of a request. Raises Problem if it is something else, or larger."""
    check_is_json(request)
    return json_in(await body(request, size_max))


async def body(request: Request, size_max: int = BODY_BYTES_MAX) -> bytes:
    """Return the body of a request. Raises Problem once more of it than `size_max` bytes has arrived."""
    pieces: list[bytes] = []
    size = 0
    async for piece in request.stream():
        size += len(piece)
        if size > size_max:
            raise too_large(size_max)
        pieces.append(piece)
    return b"".join(pieces)


def check_is_json(request: Request) -> None:
    """Raise Problem if the body of a request is announced as something else than JSON."""
    media_type = media_type_of(request)
    if media_type != JSON:
        detail = f"Content-Type: is '{media_type[:60]}', must be {JSON}"
        raise Problem(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "invalid", detail, "Content-Type")


def json_in(raw: bytes) -> Any:
    """Return JSON as data. Raises Problem if it is not JSON, or has too many parts."""
    # Each part takes a hundred times the memory of its two bytes. Braces within texts count, too: that errs rarely.
    if raw.count(b"{") + raw.count(b"[") > PARTS_MAX:
        detail = f"the body has more than {PARTS_MAX:,} objects and lists: send it in several requests"
        raise Problem(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "too_large", detail)
    try:
        return msgspec.json.decode(raw)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        detail = "is too deeply nested" if isinstance(error, RecursionError) else str(error)[:200]
        raise Problem(HTTPStatus.BAD_REQUEST, "invalid", f"the body is not JSON: {detail}") from None
