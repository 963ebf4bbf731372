"""SIGTERM and SIGINT to a server process."""

from __future__ import annotations

import asyncio
import re
import signal
import sys
from pathlib import Path

import aiohttp
import pytest

from tests.server.live_server import make_tokenizer_file, read_error

_TEXT = "Hello there, friend. The quick brown fox is my own fox."


async def _start(
    tmp_path: Path, delay_s: float, grace_s: float
) -> tuple[asyncio.subprocess.Process, str]:
    tokenizer = tmp_path / "tokenizer.json"
    make_tokenizer_file(tokenizer)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.server.scripted_server", str(tokenizer), _TEXT),
        *(str(delay_s), str(grace_s)),
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    line = (await process.stdout.readline()).decode()
    match = re.fullmatch(
        r"serving scripted on (http://127\.0\.0\.1:\d+/v1) \(Ctrl-C stops\)\n", line
    )
    assert match is not None, line
    return process, match[1]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_running_answers_are_finished(tmp_path: Path, number: signal.Signals) -> None:
    process, url = await _start(tmp_path, delay_s=0.03, grace_s=20)
    body = {"model": "default", "messages": [{"role": "user", "content": "x"}], "stream": True}
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{url}/chat/completions", json=body) as response,
    ):
        await response.content.readuntil(b"\n\n")
        process.send_signal(number)
        rest = await response.text()
    assert rest.endswith("data: [DONE]\n\n")
    assert '"finish_reason":"stop"' in rest
    assert '"error"' not in rest
    assert await process.wait() == 0


async def test_the_grace_period_is_kept(tmp_path: Path) -> None:
    process, url = await _start(tmp_path, delay_s=30, grace_s=0.1)
    body = {"model": "default", "messages": [{"role": "user", "content": "x"}]}
    async with aiohttp.ClientSession() as session:
        request = asyncio.create_task(session.post(f"{url}/chat/completions", json=body))
        await asyncio.sleep(0.2)
        process.terminate()
        async with asyncio.timeout(10), await request as response:
            assert "shut down" in (await read_error(response, 503))["message"]
            assert await process.wait() == 0


async def test_an_idle_server_ends_at_once(tmp_path: Path) -> None:
    process, _ = await _start(tmp_path, delay_s=0, grace_s=60)
    process.terminate()
    async with asyncio.timeout(10):
        assert await process.wait() == 0
