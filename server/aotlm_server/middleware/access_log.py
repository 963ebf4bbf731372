"""One log line a request, as text or as JSON; 499 stands for a client that left."""

from __future__ import annotations

import asyncio
import json
import logging
import time

from aiohttp import web
from aiohttp.typedefs import Handler

from aotlm_server.middleware.request_id import REQUEST_ID

ACCESS_LOG = logging.getLogger("aotlm.access")
CLIENT_LEFT = 499


@web.middleware
async def access_log(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Measure and log; a stream is logged when it ends."""
    start = time.perf_counter()
    status = 500
    try:
        response = await handler(request)
        gone = request.transport is None or request.transport.is_closing()
        status = CLIENT_LEFT if gone else response.status
        return response
    except asyncio.CancelledError:
        status = CLIENT_LEFT
        raise
    finally:
        ACCESS_LOG.info(
            "%s %s %d %.3fs %s",
            request.method,
            printable(request.path),
            status,
            time.perf_counter() - start,
            REQUEST_ID.get(),
        )


def printable(text: str) -> str:
    """`text` with a backslash escape for each character that could forge or garble a log line."""
    return "".join(
        character
        if character.isprintable() and character != "\\"
        else character.encode("unicode_escape").decode()
        for character in text
    )


class JsonFormatter(logging.Formatter):
    """A log record as one JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        """Serialize time (Unix seconds), level, logger, message and stack trace."""
        entry = {
            "time": round(record.created, 3),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry, ensure_ascii=False)


def set_up_logging(log_format: str) -> None:
    """Send the server's log to stderr in the chosen format ("text" or "json")."""
    handler = logging.StreamHandler()
    if log_format == "json":
        handler.setFormatter(JsonFormatter())
    else:
        handler.setFormatter(logging.Formatter("%(asctime)s %(message)s", "%H:%M:%S"))
    logger = logging.getLogger("aotlm")
    logger.handlers[:] = [handler]
    logger.setLevel(logging.INFO)
    logger.propagate = False
