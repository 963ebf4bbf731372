"""Bytes that are no HTTP, and bodies that are not what they claim: a 400, and no stack trace."""

from __future__ import annotations

import asyncio
import gzip
import json
import logging
import zlib
from typing import Any

import pytest

from tests.server.live_server import LiveServer, read_error

_JSON = {"Content-Type": "application/json"}


async def _send(live: LiveServer, raw: bytes) -> tuple[int, dict[str, Any]]:
    """Status and error of the answer to raw bytes, after which the server hangs up."""
    host, port = live.root.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(raw)
    try:
        async with asyncio.timeout(5):
            answer = await reader.read()
    finally:
        writer.close()
        await writer.wait_closed()
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"application/json" in head
    return int(head.split()[1]), json.loads(body)["error"]


@pytest.mark.parametrize(
    "raw",
    [
        b"GARBAGE\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
        b"GET /health HTTP/9.9\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: abc\r\n\r\n",
        b"GET /" + b"a" * 20_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nX-Long: " + b"a" * 20_000 + b"\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nbad header\r\n\r\n",
        (
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
            b"Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
            b"zz\r\nnonsense\r\n"
        ),
    ],
)
async def test_what_is_no_http(
    live: LiveServer, caplog: pytest.LogCaptureFixture, raw: bytes
) -> None:
    caplog.set_level(logging.DEBUG)
    status, error = await _send(live, raw)
    assert status == 400
    assert set(error) == {"message", "type", "param", "code"}
    assert error["type"] == "invalid_request_error"
    assert "\n" not in error["message"]
    assert len(error["message"]) < 300
    assert not [record for record in caplog.records if record.exc_info]
    bad = [r for r in caplog.records if r.name == "aotlm.server"]
    assert all("\n" not in r.getMessage() and len(r.getMessage()) < 300 for r in bad)
    await live.chat()  # and the server lives


@pytest.mark.parametrize(
    ("encoding", "pack"),
    [("gzip", gzip.compress), ("x-gzip", gzip.compress), ("deflate", zlib.compress)],
)
async def test_compressed_bodies(
    live: LiveServer, caplog: pytest.LogCaptureFixture, encoding: str, pack: Any
) -> None:
    url, headers = f"{live.url}/chat/completions", {**_JSON, "Content-Encoding": encoding}
    good = pack(json.dumps(live.body()).encode())
    async with live.session.post(url, data=good, headers=headers) as response:
        assert response.status == 200
    for bad in (b"not compressed", good[:-3], good + b"more", b""):
        async with live.session.post(url, data=bad, headers=headers) as response:
            error = await read_error(response, 400)
            assert "Content-Encoding" in error["message"]
    async with live.session.post(url, data=pack(b" " * 2**26), headers=headers) as response:
        assert (await read_error(response, 413))["code"] == "body_too_large"
    assert not [record for record in caplog.records if record.exc_info]


@pytest.mark.parametrize("encoding", ["br", "zstd", "gzip, gzip", "rot13"])
async def test_unknown_encodings(
    live: LiveServer, caplog: pytest.LogCaptureFixture, encoding: str
) -> None:
    headers = {**_JSON, "Content-Encoding": encoding}
    url, body = f"{live.url}/chat/completions", json.dumps(live.body()).encode()
    async with live.session.post(url, data=body, headers=headers) as response:
        assert "gzip" in (await read_error(response, 415))["message"]
    assert not [record for record in caplog.records if record.exc_info]
    assert live.engine.requests == []


async def test_long_bodies_are_answered_like_short_ones(
    live: LiveServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    pad, hops = "x" * 100_000, []
    to_thread = asyncio.to_thread

    async def counted(function: Any, *arguments: Any) -> Any:
        hops.append(function)
        return await to_thread(function, *arguments)

    monkeypatch.setattr(asyncio, "to_thread", counted)
    for fields in ({"n": 0}, {"colour": "red"}, {"top_p": 7}, {"messages": [5]}):
        assert await live.error(400, **fields, user=pad) == await live.error(400, **fields)
    assert await live.error(404, model="m", user=pad) == await live.error(404, model="m")
    short, long = await live.chat(), await live.chat(user=pad)
    assert long["choices"] == short["choices"]
    assert live.engine.requests[0].prompt_ids == live.engine.requests[1].prompt_ids
    assert len(hops) == 6
