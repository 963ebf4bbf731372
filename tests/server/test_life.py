"""Clients that leave, health, draining."""

from __future__ import annotations

import asyncio
import contextlib
from urllib.parse import urlsplit

import aiohttp
import pytest

from aotlm.engine.protocol import EngineStatus
from aotlm.errors import ServeError
from aotlm.text.tokenizer import Tokenizer
from aotlm_server.served_model import ModelSlot
from aotlm_server.serving import bind
from aotlm_server.settings import Settings
from tests.server.live_server import LiveServer, eventually, make_model, run_server
from tests.server.scripted_engine import Script, ScriptedEngine


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("n", [1, 3])
async def test_leaving_client_aborts(live: LiveServer, stream: bool, n: int) -> None:
    live.play("Hello there, friend.", stall_after=2)
    url = f"{live.url}/chat/completions"
    for _ in range(10):
        live.engine.requests.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.05):
                async with live.session.post(url, json=live.body(stream=stream, n=n)) as response:
                    await response.read()
        await eventually(lambda: not live.engine.running)
        ids = {request.request_id for request in live.engine.requests}
        assert len(ids) == n
        assert ids <= set(live.engine.aborted)
        assert ids <= set(live.engine.left)
    live.play("fine")
    assert (await live.chat())["choices"][0]["message"]["content"] == "fine"


async def test_client_that_leaves_before_its_body_is_whole(live: LiveServer) -> None:
    where = urlsplit(live.url)
    _, writer = await asyncio.open_connection(where.hostname, where.port)
    writer.write(
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        b'Content-Length: 500\r\n\r\n{"model"'
    )
    await writer.drain()
    writer.close()
    await writer.wait_closed()
    await live.chat()
    assert len(live.engine.requests) == 1


async def test_health_follows_the_life_of_the_model(tokenizer: Tokenizer) -> None:
    slot = ModelSlot()
    engine = ScriptedEngine()
    async with (
        run_server(slot, Settings(grace_period=0)) as url,
        aiohttp.ClientSession() as session,
    ):
        root = url.removesuffix("/v1")

        async def health(path: str) -> tuple[int, str]:
            async with session.get(f"{root}/{path}") as response:
                return response.status, (await response.json())["status"]

        for path in ("health", "healthz"):
            assert await health(path) == (503, "loading")
        async with session.get(f"{url}/models") as response:
            assert response.status == 503
        slot.fill(make_model(engine, tokenizer))
        assert await health("health") == (200, "ready")
        engine.state = EngineStatus.FAILED
        assert await health("healthz") == (503, "failed")
        engine.state = EngineStatus.READY


async def test_draining_finishes_what_runs(tokenizer: Tokenizer) -> None:
    tokens = tokenizer.encode("Hello there, friend.", allow_special=False)
    engine = ScriptedEngine(Script(tokens, delay_s=0.02))
    slot = ModelSlot(make_model(engine, tokenizer))
    async with aiohttp.ClientSession() as session, contextlib.AsyncExitStack() as stack:
        url = await stack.enter_async_context(run_server(slot, Settings(grace_period=5)))
        body = {"model": "default", "messages": [{"role": "user", "content": "x"}]}
        running = asyncio.create_task(session.post(f"{url}/chat/completions", json=body))
        await eventually(lambda: bool(engine.running))
        closing = asyncio.create_task(stack.aclose())
        await eventually(lambda: engine.state is EngineStatus.DRAINING)
        with pytest.raises(aiohttp.ClientConnectorError):
            await session.get(f"{url}/models")
        async with await running as response:
            answer = await response.json()
        assert answer["choices"][0]["message"]["content"] == "Hello there, friend."
        await closing
    assert engine.state is EngineStatus.STOPPED


async def test_grace_period_cuts_what_still_runs(tokenizer: Tokenizer) -> None:
    tokens = tokenizer.encode("Hello there, friend.", allow_special=False)
    engine = ScriptedEngine(Script(tokens, stall_after=3))
    slot = ModelSlot(make_model(engine, tokenizer))
    async with aiohttp.ClientSession() as session, contextlib.AsyncExitStack() as stack:
        url = await stack.enter_async_context(run_server(slot, Settings(grace_period=0.05)))
        body = {"model": "default", "messages": [{"role": "user", "content": "x"}], "stream": True}
        async with session.post(f"{url}/chat/completions", json=body) as response:
            await response.content.readuntil(b"\n\n")
            await stack.aclose()
            rest = await response.text()
    assert rest.count('"error"') == 1
    assert "shut down" in rest
    assert rest.endswith("data: [DONE]\n\n")


def test_port_in_use_is_one_clear_line() -> None:
    with bind("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ServeError, match=f"port {port} on 127.0.0.1 is in use.*--port"):
            bind("127.0.0.1", port)


def test_host_that_does_not_exist() -> None:
    with pytest.raises(ServeError, match="--host"):
        bind("no.such.host.invalid", 0)
