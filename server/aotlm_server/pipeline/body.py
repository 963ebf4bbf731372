"""Step 0: what came over the wire becomes a JSON object."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Any

from aiohttp import web
from pydantic_core import from_json

from aotlm.errors import RequestError

_CHARSETS = ("utf-8", "utf8", "us-ascii")
_PLAIN = ("", "identity")
_COMPRESSED = ("gzip", "x-gzip", "deflate")
_EITHER_HEADER = zlib.MAX_WBITS | 32  # gzip's or zlib's, as the data say
# How pydantic's parser speaks of an escape such as \ud800 without its other half.
_SURROGATE_ERRORS = ("lone leading surrogate", "unexpected end of hex escape")


@dataclass(frozen=True, slots=True)
class Body:
    """A body as it was sent, at most `max_bytes` long; it may not be longer unpacked."""

    raw: bytes
    compressed: bool
    max_bytes: int


async def read_body(request: web.Request) -> Body:
    """Read the body. Raises HTTPUnsupportedMediaType, HTTPRequestEntityTooLarge, RequestError."""
    charset = (request.charset or "utf-8").lower()
    if request.content_type != "application/json" or charset not in _CHARSETS:
        raise web.HTTPUnsupportedMediaType(text="send the body as Content-Type: application/json")
    encoding = request.headers.get("Content-Encoding", "").strip().lower()
    if encoding not in (*_PLAIN, *_COMPRESSED):
        known = "gzip or deflate"
        raise web.HTTPUnsupportedMediaType(
            text=f"Content-Encoding: send the body as it is, or compressed by {known}"
        )
    try:
        raw = await request.read()
    except (web.RequestPayloadError, ConnectionError) as error:
        raise RequestError(f"the request body cannot be read: {error}") from None
    return Body(raw, encoding in _COMPRESSED, request.client_max_size)


def parse_object(body: Body) -> dict[str, Any]:
    """The JSON object in a body.

    Raises HTTPRequestEntityTooLarge, or RequestError for what is not a JSON object: damaged
    compression, wrong syntax, raw NUL bytes, lone surrogates, deeper than 200 levels.
    """
    raw = _unpack(body) if body.compressed else body.raw
    try:
        value = from_json(raw, allow_inf_nan=False)
    except ValueError as error:
        reason = str(error)
        if any(known in reason for known in _SURROGATE_ERRORS):
            where = reason.partition(" at ")[2]
            raise RequestError(
                "the text in the request body holds half of a surrogate pair and is not valid "
                f"Unicode, at {where}"
            ) from None
        raise RequestError(f"the request body is not valid JSON: {reason}") from None
    if not isinstance(value, dict):
        raise RequestError("the request body must be a JSON object")
    return value


def _unpack(body: Body) -> bytes:
    unpacker = zlib.decompressobj(_EITHER_HEADER)
    try:
        data = unpacker.decompress(body.raw, body.max_bytes + 1)
    except zlib.error:
        data = b""
    if len(data) > body.max_bytes:
        raise web.HTTPRequestEntityTooLarge(body.max_bytes, len(data))
    if not unpacker.eof or unpacker.unused_data:
        raise RequestError("the request body is not what its Content-Encoding says, or is cut off")
    return data
