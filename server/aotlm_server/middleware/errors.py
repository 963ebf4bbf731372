"""The one place where an exception becomes an HTTP status and an OpenAI-shaped body.

Clients never see a stack trace: an unforeseen exception goes to the log with the request's id,
and the answer names that id.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

from aiohttp import web
from aiohttp.typedefs import Handler

from aotlm.errors import (
    AotlmError,
    ContextLengthError,
    EngineOverloaded,
    EngineStopped,
    ModelNotServed,
    RequestError,
)
from aotlm_server.middleware.request_id import REQUEST_ID
from aotlm_server.protocol.error import ErrorBody, error_body
from aotlm_server.sse import encode_json

_LOG = logging.getLogger("aotlm.server")

_INVALID = "invalid_request_error"
_SERVER = "server_error"
RETRY_AFTER_S = 1


@dataclass(frozen=True, slots=True)
class ErrorAnswer:
    """An error as a client sees it."""

    status: int
    body: ErrorBody
    headers: dict[str, str] = field(default_factory=dict)


def describe_error(error: Exception, request: web.Request) -> ErrorAnswer:
    """Map an exception to its answer; log those that are our fault."""
    if isinstance(error, AotlmError):
        return _describe_own(error)
    if isinstance(error, web.HTTPException):
        return _describe_http(error, request)
    number = REQUEST_ID.get()
    _LOG.error("request %s failed", number, exc_info=error)
    message = f"internal error; the server's log tells more under request id {number}"
    return ErrorAnswer(500, error_body(message, _SERVER, code="internal_error"))


def _describe_own(error: AotlmError) -> ErrorAnswer:
    message = str(error)
    match error:
        case ModelNotServed():
            body = error_body(message, _INVALID, error.param, "model_not_found")
            return ErrorAnswer(404, body)
        case ContextLengthError():
            body = error_body(message, _INVALID, error.param, "context_length_exceeded")
            return ErrorAnswer(400, body)
        case RequestError():
            return ErrorAnswer(400, error_body(message, _INVALID, error.param))
        case EngineOverloaded():
            body = error_body(message, "rate_limit_exceeded", code="rate_limit_exceeded")
            return ErrorAnswer(429, body, {"Retry-After": str(RETRY_AFTER_S)})
        case EngineStopped():
            body = error_body(message, _SERVER, code="service_unavailable")
            return ErrorAnswer(503, body, {"Retry-After": str(RETRY_AFTER_S)})
        case _:
            _LOG.error("request %s failed: %s", REQUEST_ID.get(), message)
            return ErrorAnswer(500, error_body(message, _SERVER, code="generation_failed"))


def _describe_http(error: web.HTTPException, request: web.Request) -> ErrorAnswer:
    """Errors that aiohttp raises, or that we raise by its classes."""
    headers: dict[str, str] = {}
    code: str | None = None
    match error:
        case web.HTTPNotFound():
            message, code = f"no such path: {request.path}", "not_found"
        case web.HTTPMethodNotAllowed():
            allowed = ", ".join(sorted(error.allowed_methods))
            message = f"{request.path} does not take {request.method}, but {allowed}"
            code, headers = "method_not_allowed", {"Allow": allowed}
        case web.HTTPRequestEntityTooLarge():
            limit = request.client_max_size
            message, code = f"the request body is larger than {limit} bytes", "body_too_large"
        case _:
            # `text` is ours where we gave one, else "415: Unsupported Media Type".
            message = error.text or error.reason
    kind = _INVALID if error.status < 500 else _SERVER
    return ErrorAnswer(error.status, error_body(message, kind, code=code), headers)


@web.middleware
async def errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Turn whatever a handler raises into an answer."""
    try:
        return await handler(request)
    except web.HTTPException as error:
        if error.status < 400:
            raise
        answer = describe_error(error, request)
    except Exception as error:
        answer = describe_error(error, request)
    response = web.Response(
        status=answer.status,
        body=encode_json(answer.body),
        content_type="application/json",
        headers=answer.headers,
    )
    if not request.can_read_body or request.content.is_eof():
        return response
    # The rest of an unread body would be taken for the next request.
    response.force_close()
    return response
