"""Starts servers for tests and speaks to them without an SDK."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
from tokenizers import Tokenizer as TokenizerFile
from tokenizers import decoders, models, pre_tokenizers, trainers

from aotlm.text.conversation import ConversationTemplate
from aotlm.text.tokenizer import Tokenizer
from aotlm_server.served_model import ModelSlot, ServedModel
from aotlm_server.serving import base_url, bind, listening
from aotlm_server.settings import Settings
from tests.server.scripted_engine import Script, ScriptedEngine

MODEL = "scripted"
SPECIAL = ("<|im_start|>", "<|im_end|>")
TEMPLATE = (
    "{% if messages[0].content == 'refuse me' %}"
    "{{ raise_exception('the template refuses') }}{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def make_tokenizer_file(path: Path) -> None:
    """Write a tokenizer.json: every byte, a few merges, the special tokens last."""
    tokenizer = TokenizerFile(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    corpus = ["Hello there, friend. The quick brown fox is my own fox."] * 4
    tokenizer.train_from_iterator(corpus, trainer)
    tokenizer.add_special_tokens(list(SPECIAL))
    tokenizer.save(str(path))


def make_model(
    engine: ScriptedEngine, tokenizer: Tokenizer, template: str = TEMPLATE
) -> ServedModel:
    """A served model around an engine."""
    end = tokenizer.token_to_id(SPECIAL[1])
    assert end is not None
    return ServedModel(
        name=MODEL,
        engine=engine,
        tokenizer=tokenizer,
        conversation=ConversationTemplate(template),
        end_token_ids=frozenset({end}),
        created=1_700_000_000,
        fingerprint="aotlm-test",
    )


@contextlib.asynccontextmanager
async def run_server(slot: ModelSlot, settings: Settings) -> AsyncIterator[str]:
    """Serve on a free port; yields the base URL, which ends in /v1."""
    listener = bind("127.0.0.1", 0)
    async with listening(slot, settings, listener):
        yield base_url(listener)


@dataclass
class LiveServer:
    """A running server and a client of it."""

    url: str
    session: aiohttp.ClientSession
    engine: ScriptedEngine
    tokenizer: Tokenizer

    @property
    def root(self) -> str:
        return self.url.removesuffix("/v1")

    def play(self, text: str, **options: Any) -> None:
        """Let the engine answer `text` from now on."""
        self.play_tokens(self.tokenizer.encode(text, allow_special=False), **options)

    def play_tokens(self, tokens: list[int], **options: Any) -> None:
        """Let the engine answer these tokens from now on."""
        self.engine.script = Script(tokens, **options)

    def body(self, **fields: Any) -> dict[str, Any]:
        """A valid request with some fields set."""
        return {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], **fields}

    async def chat(self, **fields: Any) -> dict[str, Any]:
        """A non-stream answer with status 200."""
        async with self.session.post(
            f"{self.url}/chat/completions", json=self.body(**fields)
        ) as response:
            assert response.status == 200, await response.text()
            answer: dict[str, Any] = await response.json()
            return answer

    async def stream(self, **fields: Any) -> list[dict[str, Any]]:
        """The events of a stream that ended with [DONE]."""
        body = self.body(stream=True, **fields)
        async with self.session.post(f"{self.url}/chat/completions", json=body) as response:
            assert response.status == 200, await response.text()
            assert response.content_type == "text/event-stream"
            blocks = (await response.text()).split("\n\n")
        assert blocks.pop() == ""
        assert blocks.pop() == "data: [DONE]"
        assert all(block.startswith("data: ") for block in blocks)
        return [json.loads(block.removeprefix("data: ")) for block in blocks]

    async def error(self, expected_status: int, **fields: Any) -> dict[str, Any]:
        """The error of a request that is refused."""
        async with self.session.post(
            f"{self.url}/chat/completions", json=self.body(**fields)
        ) as response:
            return await read_error(response, expected_status)


async def read_error(response: aiohttp.ClientResponse, expected_status: int) -> dict[str, Any]:
    """Check the shape of an error body and return its inner object."""
    assert response.status == expected_status, await response.text()
    assert response.content_type == "application/json"
    body = await response.json()
    assert set(body) == {"error"}
    assert set(body["error"]) == {"message", "type", "param", "code"}
    assert "Traceback" not in body["error"]["message"]
    detail: dict[str, Any] = body["error"]
    return detail


def joined_text(chunks: list[dict[str, Any]], index: int = 0) -> str:
    """All content of one choice of a stream."""
    return "".join(
        choice["delta"].get("content", "")
        for chunk in chunks
        for choice in chunk["choices"]
        if choice["index"] == index
    )


async def eventually(condition: Callable[[], bool], seconds: float = 2.0) -> None:
    """Wait until it holds; fails after `seconds`."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 any condition will do
            await asyncio.sleep(0.005)
