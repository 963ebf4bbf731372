"""Server-sent events, both ends: what the server writes and what our clients read."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from typing import Any

from aiohttp import StreamReader, web

DONE = "[DONE]"

_HEADERS = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-cache",
    # nginx gathers answers unless told not to, and the stream would arrive in lumps.
    "X-Accel-Buffering": "no",
}


def encode_json(value: Any) -> bytes:
    """UTF-8 JSON without needless spaces; text stays readable."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


class EventStream:
    """An answer made of events. Nothing is sent before `open`, so errors can still be bodies."""

    def __init__(self, request: web.Request) -> None:
        self._request = request
        self.response = web.StreamResponse(headers=_HEADERS)

    async def open(self) -> None:
        """Send the headers; from here on errors are events."""
        await self.response.prepare(self._request)

    async def send(self, data: Mapping[str, Any]) -> None:
        """Send one event; waits while the client reads slower than we write."""
        await self.response.write(b"data: " + encode_json(data) + b"\n\n")

    async def close(self) -> None:
        """Send the end mark and end the body."""
        await self.response.write(f"data: {DONE}\n\n".encode())
        await self.response.write_eof()


async def read_events(content: StreamReader) -> AsyncIterator[str]:
    """The data of each event of a body, `[DONE]` included, as it arrives.

    Accepts every line end of the format (LF, CRLF), comments and multi-line data.
    """
    data: list[str] = []
    async for raw in _lines(content):
        line = raw.decode("utf-8", "replace")
        if not line:
            if data:
                yield "\n".join(data)
            data = []
        elif line.startswith("data:"):
            data.append(line[5:].removeprefix(" "))
    if data:
        yield "\n".join(data)


async def _lines(content: StreamReader) -> AsyncIterator[bytes]:
    # Not content.readline(): it refuses lines longer than its buffer.
    rest = b""
    async for block in content.iter_any():
        *lines, rest = (rest + block).split(b"\n")
        for line in lines:
            yield line.rstrip(b"\r")
    if rest:
        yield rest.rstrip(b"\r")
