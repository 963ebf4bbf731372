"""Any tokens, cut anyhow, with any stop strings: the stream's text is the answer's text."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from hypothesis import given
from hypothesis import strategies as st

from aotlm.request import FinishReason, GenerationConfig, Request
from aotlm.text.tokenizer import Tokenizer
from aotlm_server.pipeline.assemble import AnswerHead, ChunkWriter, fold
from aotlm_server.pipeline.generate import TextEvent, generate_text, merge_choices
from aotlm_server.protocol.chat import ChatChunk, ChatCompletion
from tests.server.live_server import make_model
from tests.server.scripted_engine import Script, ScriptedEngine

_TEXTS = st.text(alphabet="ab <ox é👩‍\ufffd日\n", max_size=24)
_STOPS = st.lists(st.text(alphabet="ab <oxé👩日", min_size=1, max_size=4), max_size=3)


def _expected(raw: bytes, stops: list[str]) -> tuple[str, bool]:
    """The text up to the stop string that is complete first, found the simple way."""
    text = raw.decode("utf-8", "replace")
    for end in range(1, len(text) + 1):
        found = [len(stop) for stop in stops if text[:end].endswith(stop)]
        if found:
            return text[: end - max(found)], True
    return text, False


async def _run(
    tokenizer: Tokenizer, tokens: list[int], stops: list[str], per_output: int, interval: int
) -> tuple[list[ChatChunk], ChatCompletion, ScriptedEngine]:
    engine = ScriptedEngine(Script(tokens, tokens_per_output=per_output))
    head = AnswerHead(make_model(engine, tokenizer), wants_logprobs=True)

    def events() -> AsyncIterator[TextEvent]:
        request = Request("r", (1, 2), GenerationConfig(logprobs=1))
        return merge_choices(
            [generate_text(engine, tokenizer, request, stops=stops, interval=interval)]
        )

    writer = ChunkWriter(head, include_usage=False)
    chunks = [chunk async for event in events() for chunk in writer.chunks(event)]
    return chunks, await fold(events(), head, 1), engine


@given(
    text=_TEXTS,
    cut=st.integers(0, 3),
    stops=_STOPS,
    per_output=st.integers(1, 5),
    interval=st.integers(1, 5),
)
def test_stream_equals_answer_for_every_cut(
    tokenizer: Tokenizer, text: str, cut: int, stops: list[str], per_output: int, interval: int
) -> None:
    tokens = tokenizer.encode(text, allow_special=False)
    tokens = tokens[: len(tokens) - cut] if cut < len(tokens) else tokens
    raw = b"".join(map(tokenizer.token_bytes, tokens))
    expected, stopped = _expected(raw, stops)

    chunks, answer, engine = asyncio.run(_run(tokenizer, tokens, stops, per_output, interval))
    deltas = [chunk["choices"][0]["delta"].get("content", "") for chunk in chunks]
    message = answer["choices"][0]["message"]
    assert "".join(deltas) == message["content"] == expected
    assert chunks[-1]["choices"][0]["finish_reason"] == FinishReason.STOP
    assert answer["choices"][0]["finish_reason"] == FinishReason.STOP
    assert not engine.running

    entries = [
        entry
        for chunk in chunks
        for entry in (chunk["choices"][0]["logprobs"] or {"content": []})["content"]
    ]
    logprobs = answer["choices"][0]["logprobs"]
    assert logprobs is not None
    assert entries == logprobs["content"]
    spelled = bytes(byte for entry in entries for byte in entry["bytes"] or ())
    if stopped:  # a token that straddles the cut is there whole, none that lies behind it
        assert raw.startswith(spelled)
    else:
        assert spelled == raw
