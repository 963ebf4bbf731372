"""A small tokenizer, and a real server on a free port with a scripted engine in it."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncIterator, Iterator

import aiohttp
import pytest
import pytest_asyncio

from aotlm.text.tokenizer import Tokenizer
from aotlm_server.served_model import ModelSlot
from aotlm_server.settings import Settings
from tests.server.live_server import LiveServer, make_model, make_tokenizer_file, run_server
from tests.server.scripted_engine import Script, ScriptedEngine


@pytest.fixture(autouse=True)
def own_logging() -> Iterator[None]:
    """Commands set logging up for their process; a test must not do that to the others."""
    logger = logging.getLogger("aotlm")
    before = logger.handlers[:], logger.level, logger.propagate
    yield
    logger.handlers[:], logger.level, logger.propagate = before


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """Byte-level BPE with a few merges and two special tokens."""
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    make_tokenizer_file(path)
    return Tokenizer.from_file(path)


@pytest_asyncio.fixture
async def live(tokenizer: Tokenizer) -> AsyncIterator[LiveServer]:
    """A server that answers "Hello there, friend." with default settings."""
    engine = ScriptedEngine(Script(tokenizer.encode("Hello there, friend.", allow_special=False)))
    slot = ModelSlot(make_model(engine, tokenizer))
    async with contextlib.AsyncExitStack() as stack:
        url = await stack.enter_async_context(run_server(slot, Settings(grace_period=0)))
        session = await stack.enter_async_context(aiohttp.ClientSession())
        yield LiveServer(url, session, engine, tokenizer)
