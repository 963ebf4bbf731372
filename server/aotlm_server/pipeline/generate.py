"""Step 5: tokens from the engine become events of text.

This is the one road for stream and non-stream: both consume the same events, so their texts
cannot differ. Leaving the events early, by a stop string or because the client left, aborts
the request in the engine.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass

from aotlm.engine.protocol import EngineProtocol, EngineStatus
from aotlm.errors import EngineStopped, GenerationFailed
from aotlm.request import FinishReason, Request, TokenLogprobs, TokenOutput
from aotlm.text.detokenizer import Detokenizer
from aotlm.text.stop_strings import StopStrings
from aotlm.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class TokenCounts:
    """What one choice has used, in tokens."""

    prompt: int
    completion: int
    cached: int


@dataclass(frozen=True, slots=True)
class TextDelta:
    """More text of choice `index`; `logprobs` holds its tokens when they were asked for."""

    index: int
    text: str
    logprobs: tuple[TokenLogprobs, ...] = ()


@dataclass(frozen=True, slots=True)
class TextEnd:
    """The last event of choice `index`."""

    index: int
    finish_reason: FinishReason
    counts: TokenCounts


TextEvent = TextDelta | TextEnd


class TextReader:
    """Token ids in, text out that may be sent: whole characters, no part of a stop string.

    A token's logprobs are let out together with its text, not before: they would leak the
    start of a stop string.
    """

    def __init__(self, tokenizer: Tokenizer, stops: Sequence[str]) -> None:
        self._detokenizer = Detokenizer(tokenizer)
        self._stops = StopStrings(stops)
        self._read = 0  # characters out of the detokenizer
        self._sent = 0  # characters given to the caller
        self._held: deque[tuple[int, TokenLogprobs]] = deque()  # (characters before, entry)
        self.stopped = False

    def push(self, output: TokenOutput) -> tuple[str, tuple[TokenLogprobs, ...]]:
        """Add an output's tokens; sets `stopped` and drops the rest at a stop string."""
        sent = ""
        for position, token_id in enumerate(output.token_ids):
            if output.logprobs:
                self._held.append((self._read, output.logprobs[position]))
            text = self._detokenizer.push([token_id])
            self._read += len(text)
            emitted, self.stopped = self._stops.push(text)
            sent += emitted
            if self.stopped:
                break
        return sent, self._release(sent)

    def finish(self) -> tuple[str, tuple[TokenLogprobs, ...]]:
        """What was held back, once no more tokens come."""
        if self.stopped:
            return "", ()
        text, self.stopped = self._stops.push(self._detokenizer.finish())
        if not self.stopped:
            text += self._stops.finish()
        self._sent += len(text)
        rest = tuple(entry for before, entry in self._held if self._may_go(before))
        self._held.clear()
        return text, rest

    def _release(self, text: str) -> tuple[TokenLogprobs, ...]:
        self._sent += len(text)
        free = []
        while self._held and self._may_go(self._held[0][0]):
            free.append(self._held.popleft()[1])
        return tuple(free)

    def _may_go(self, before: int) -> bool:
        # Nothing is withheld, or some text after the token's start has been sent.
        return before < self._sent or (before == self._sent == self._read and not self.stopped)


async def generate_text(
    engine: EngineProtocol,
    tokenizer: Tokenizer,
    request: Request,
    *,
    index: int = 0,
    stops: Sequence[str] = (),
    interval: int = 1,
) -> AsyncGenerator[TextEvent, None]:
    """The events of one choice: deltas, then one end. `interval` tokens are gathered in a delta.

    Raises what `EngineProtocol.generate` raises, and EngineStopped for an answer that the
    engine cut short.
    """
    reader = TextReader(tokenizer, stops)
    text, entries, gathered = "", list[TokenLogprobs](), 0
    ended = False
    outputs = engine.generate(request)
    try:
        async for output in outputs:
            more, logprobs = reader.push(output)
            text, gathered = text + more, gathered + len(output.token_ids)
            entries += logprobs
            reason = FinishReason.STOP if reader.stopped else output.finish_reason
            ended = output.finish_reason is not None
            if reason is None:
                if gathered >= interval and (text or entries):
                    yield TextDelta(index, text, tuple(entries))
                    text, entries, gathered = "", [], 0
                continue
            if reason is FinishReason.ABORT:
                raise _cut_short(engine)
            more, logprobs = reader.finish()
            if reader.stopped:  # the last characters may complete a stop string
                reason = FinishReason.STOP
            if text or more or entries or logprobs:
                yield TextDelta(index, text + more, (*entries, *logprobs))
            yield TextEnd(index, reason, _counts(output))
            return
        raise GenerationFailed("the engine ended the request without a reason")
    finally:
        if not ended:
            engine.abort(request.request_id)
        # A plain iterator has no aclose; a generator must be closed now, not when collected.
        if isinstance(outputs, AsyncGenerator):
            await outputs.aclose()


def _counts(output: TokenOutput) -> TokenCounts:
    return TokenCounts(output.prompt_tokens, output.completion_tokens, output.cached_tokens)


def _cut_short(engine: EngineProtocol) -> Exception:
    if engine.status is EngineStatus.READY:
        return GenerationFailed("the request was aborted")
    return EngineStopped("the server shut down before the answer was complete")


async def merge_choices(
    choices: Sequence[AsyncGenerator[TextEvent, None]],
) -> AsyncGenerator[TextEvent, None]:
    """The events of all choices as they come; the first error ends them all."""
    if len(choices) == 1:
        async with aclosing(choices[0]) as only:
            async for event in only:
                yield event
        return
    # Bounded, so that a slow client slows the generation instead of filling memory.
    queue: asyncio.Queue[TextEvent | Exception] = asyncio.Queue(maxsize=2 * len(choices))
    tasks = [asyncio.create_task(_pump(choice, queue)) for choice in choices]
    try:
        running = len(choices)
        while running:
            item = await queue.get()
            if isinstance(item, Exception):
                raise item
            running -= isinstance(item, TextEnd)
            yield item
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _pump(
    choice: AsyncGenerator[TextEvent, None], queue: asyncio.Queue[TextEvent | Exception]
) -> None:
    try:
        async with aclosing(choice):
            async for event in choice:
                await queue.put(event)
    except Exception as error:
        await queue.put(error)
