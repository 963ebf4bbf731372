"""Step 6: events of text become chunks of a stream, or, folded, the whole answer."""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from typing import Literal

from aotlm.request import TokenLogprobs
from aotlm.text.tokenizer import Tokenizer
from aotlm_server.pipeline.generate import TextDelta, TextEnd, TextEvent, TokenCounts
from aotlm_server.protocol.chat import (
    AnswerChoice,
    ChatChunk,
    ChatCompletion,
    ChoiceLogprobs,
    Delta,
    TokenLogprob,
    TopLogprob,
    Usage,
)
from aotlm_server.served_model import ServedModel

# JSON has no -infinity; this is what OpenAI sends for a token that cannot come.
_LOWEST_LOGPROB = -9999.0


@dataclass(frozen=True, slots=True)
class AnswerHead:
    """What all chunks of an answer share; `created` is in Unix seconds."""

    model: ServedModel
    wants_logprobs: bool
    id: str = field(default_factory=lambda: f"chatcmpl-{uuid.uuid4().hex}")
    created: int = field(default_factory=lambda: int(time.time()))


class ChunkWriter:
    """Makes the chunks of a stream, event by event."""

    def __init__(self, head: AnswerHead, include_usage: bool) -> None:
        self._head = head
        self._include_usage = include_usage
        self._begun: set[int] = set()
        self._ends: list[TextEnd] = []

    def chunks(self, event: TextEvent) -> Iterator[ChatChunk]:
        """The chunks of one event: before a choice's first one its role."""
        if event.index not in self._begun:
            self._begun.add(event.index)
            yield self._chunk(event.index, {"role": "assistant"})
        if isinstance(event, TextDelta):
            logprobs = _choice_logprobs(self._head, event.logprobs)
            yield self._chunk(event.index, {"content": event.text}, logprobs)
        else:
            self._ends.append(event)
            yield self._chunk(event.index, {}, finish_reason=event.finish_reason.value)

    def usage(self) -> ChatChunk | None:
        """The chunk after the last choice's end, if the client asked for it."""
        if not self._include_usage:
            return None
        chunk = self._empty()
        chunk["usage"] = count_usage([end.counts for end in self._ends])
        return chunk

    def _chunk(
        self,
        index: int,
        delta: Delta,
        logprobs: ChoiceLogprobs | None = None,
        finish_reason: str | None = None,
    ) -> ChatChunk:
        chunk = self._empty()
        chunk["choices"].append(
            {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish_reason}
        )
        if self._include_usage:
            chunk["usage"] = None
        return chunk

    def _empty(self) -> ChatChunk:
        head = self._head
        return {
            "id": head.id,
            "object": "chat.completion.chunk",
            "created": head.created,
            "model": head.model.name,
            "system_fingerprint": head.model.fingerprint,
            "choices": [],
        }


async def fold(events: AsyncIterator[TextEvent], head: AnswerHead, n: int) -> ChatCompletion:
    """The whole answer: the sum of the events that a stream would have been made of."""
    deltas: list[list[TextDelta]] = [[] for _ in range(n)]
    ends: dict[int, TextEnd] = {}
    async for event in events:
        if isinstance(event, TextDelta):
            deltas[event.index].append(event)
        else:
            ends[event.index] = event
    return {
        "id": head.id,
        "object": "chat.completion",
        "created": head.created,
        "model": head.model.name,
        "system_fingerprint": head.model.fingerprint,
        "choices": [_answer_choice(head, deltas[index], ends[index]) for index in range(n)],
        "usage": count_usage([end.counts for end in ends.values()]),
    }


def _answer_choice(head: AnswerHead, deltas: list[TextDelta], end: TextEnd) -> AnswerChoice:
    role: Literal["assistant"] = "assistant"
    entries = tuple(entry for delta in deltas for entry in delta.logprobs)
    content = "".join(delta.text for delta in deltas)
    return {
        "index": end.index,
        "message": {"role": role, "content": content, "refusal": None},
        "logprobs": _choice_logprobs(head, entries),
        "finish_reason": end.finish_reason.value,
    }


def count_usage(counts: list[TokenCounts]) -> Usage:
    """Usage over all choices: the prompt once, completions summed."""
    prompt = max(count.prompt for count in counts)
    completion = sum(count.completion for count in counts)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": min(count.cached for count in counts)},
        "completion_tokens_details": {"reasoning_tokens": 0},
    }


def _choice_logprobs(head: AnswerHead, entries: tuple[TokenLogprobs, ...]) -> ChoiceLogprobs | None:
    if not head.wants_logprobs:
        return None
    tokenizer = head.model.tokenizer
    return {"content": [_token_logprob(tokenizer, entry) for entry in entries], "refusal": None}


def _token_logprob(tokenizer: Tokenizer, entry: TokenLogprobs) -> TokenLogprob:
    own = _logprob(tokenizer, entry.token_id, entry.logprob)
    rivals = [_logprob(tokenizer, token_id, logprob) for token_id, logprob in entry.top]
    return {**own, "top_logprobs": rivals}


def _logprob(tokenizer: Tokenizer, token_id: int, logprob: float) -> TopLogprob:
    """`token` is printable: text where the bytes are whole, else `bytes:\\xf0\\x9f`."""
    raw = tokenizer.token_bytes(token_id)
    try:
        token = raw.decode()
    except UnicodeDecodeError:
        token = "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)
    return {"token": token, "logprob": max(logprob, _LOWEST_LOGPROB), "bytes": list(raw)}
