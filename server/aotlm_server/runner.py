"""aotlm's application on aotlm's connections.

What is not HTTP at all never reaches the middlewares: aiohttp answers it in plain text and logs
a stack trace. Here it gets the one error shape and one short line in the log.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError, LineTooLong
from aiohttp.web_exceptions import HTTPException

from aotlm_server.middleware.access_log import printable
from aotlm_server.protocol.error import error_body
from aotlm_server.sse import encode_json

_LOG = logging.getLogger("aotlm.server")


class Runner(web.AppRunner):
    """Runs an application; bodies reach it as they were sent, compressed or not."""

    def __init__(self, app: web.Application, **options: Any) -> None:
        # aiohttp ignores encodings that it does not know and answers bad ones as bad HTTP.
        super().__init__(app, access_log=None, auto_decompress=False, **options)

    async def _make_server(self) -> web.Server:
        plain = await super()._make_server()
        return _Server(
            plain.request_handler,
            request_factory=plain.request_factory,
            handler_cancellation=plain.handler_cancellation,
            **plain._kwargs,
        )


class _Server(web.Server):
    def __call__(self) -> web.RequestHandler:
        return _Connection(self, loop=asyncio.get_running_loop(), **self._kwargs)


class _Connection(web.RequestHandler):
    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Answer what could not be parsed; the connection ends with it."""
        if not isinstance(exc, HttpProcessingError):
            return super().handle_error(request, status, exc, message)
        reason = _reason(exc)
        _LOG.info("bad HTTP from %s: %s", request.remote, reason)
        body = error_body(f"this is not valid HTTP: {reason}", "invalid_request_error")
        response = web.Response(status=400, body=encode_json(body), content_type="application/json")
        response.force_close()
        return response

    def log_exception(self, *args: Any, **kw: Any) -> None:
        """Log our faults with their stack trace, and those of clients in one line."""
        error = kw.get("exc_info")
        if isinstance(error, (HttpProcessingError, web.RequestPayloadError, HTTPException)):
            _LOG.info("bad HTTP from a client: %s", _reason(error))
        else:
            super().log_exception(*args, **kw)


def _reason(error: BaseException) -> str:
    """One line, without what the client sent."""
    if isinstance(error, LineTooLong):
        return "the request line or a header is too long"
    text = error.message if isinstance(error, HttpProcessingError) else str(error)
    first = text.strip().partition("\n")[0].rstrip(": ")
    return printable(first)[:200] or type(error).__name__
