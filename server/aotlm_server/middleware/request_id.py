"""Every request has an id: the client's X-Request-Id if it is sane, else a fresh one.

It is echoed in the answer and stands in the log. The engine never sees it: two clients may
send the same one.
"""

from __future__ import annotations

import re
import uuid
from contextvars import ContextVar

from aiohttp import web
from aiohttp.typedefs import Handler

HEADER = "X-Request-Id"
REQUEST_ID: ContextVar[str] = ContextVar("request_id", default="-")

_SANE = re.compile(r"[A-Za-z0-9._:/+=@-]{1,128}")


@web.middleware
async def request_id(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Choose the id before anything else can fail."""
    given = request.headers.get(HEADER, "")
    # Not reset: requests of one connection run after one another in one task.
    REQUEST_ID.set(given if _SANE.fullmatch(given) else uuid.uuid4().hex)
    return await handler(request)


async def echo_request_id(request: web.Request, response: web.StreamResponse) -> None:
    """Set the header; a signal, because a stream's headers leave before its handler returns."""
    response.headers[HEADER] = REQUEST_ID.get()
