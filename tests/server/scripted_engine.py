"""An engine without a model: it plays the tokens it was given.

All above it is real: detokenizer, stop strings, HTTP and SSE. It can fail or stall after some
tokens, and it remembers what it was asked and what was aborted.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field

from aotlm.engine.protocol import EngineLimits, EngineStats, EngineStatus
from aotlm.errors import ContextLengthError, EngineStopped
from aotlm.request import FinishReason, Request, TokenLogprobs, TokenOutput


@dataclass
class Script:
    """What to answer. `tokens` may hold end tokens: they end the answer, as in a real model."""

    tokens: Sequence[int] = ()
    tokens_per_output: int = 1
    fail_after: int | None = None
    error: Exception = field(default_factory=lambda: RuntimeError("the device caught fire"))
    stall_after: int | None = None
    delay_s: float = 0.0


class ScriptedEngine:
    """Satisfies `EngineProtocol`; every request gets the same script."""

    def __init__(self, script: Script | None = None, limits: EngineLimits | None = None) -> None:
        self.script = script or Script()
        self.state = EngineStatus.READY
        self.requests: list[Request] = []
        self.running: set[str] = set()
        self.aborted: list[str] = []
        self.left: list[str] = []  # generators that were closed before their end
        self.cut = asyncio.Event()  # ends stalls, as a grace period that ran out
        self._limits = limits or EngineLimits(256, 64, 8)

    @property
    def limits(self) -> EngineLimits:
        return self._limits

    @property
    def status(self) -> EngineStatus:
        return self.state

    async def start(self) -> None:
        self.state = EngineStatus.READY

    def abort(self, request_id: str) -> None:
        self.aborted.append(request_id)

    async def stop(self, grace_s: float) -> None:
        self.state = EngineStatus.DRAINING
        loop = asyncio.get_running_loop()
        deadline = loop.time() + grace_s
        while self.running and loop.time() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        self.cut.set()
        while self.running:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        self.state = EngineStatus.STOPPED

    def stats(self) -> EngineStats:
        return EngineStats(running=len(self.running), requests=len(self.requests))

    async def generate(self, request: Request) -> AsyncGenerator[TokenOutput, None]:
        if self.state is not EngineStatus.READY:
            raise EngineStopped("the engine takes no requests")
        prompt = len(request.prompt_ids)
        if prompt >= self._limits.context_window:
            raise ContextLengthError(f"{prompt} of {self._limits.context_window}")
        self.requests.append(request)
        self.running.add(request.request_id)
        finished = False
        try:
            async for output in self._play(request):
                finished = output.finish_reason is not None
                yield output
        except Exception:
            finished = True
            raise
        finally:
            self.running.discard(request.request_id)
            if not finished:
                self.left.append(request.request_id)

    async def _is_cut(self, seconds: float | None) -> bool:
        """Wait, for ever if None; True when the grace period ran out meanwhile."""
        if not seconds and seconds is not None:
            await asyncio.sleep(0)
            return False
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.cut.wait(), seconds)
        return self.cut.is_set()

    async def _play(self, request: Request) -> AsyncGenerator[TokenOutput, None]:
        script, config = self.script, request.config
        room = self._limits.context_window - len(request.prompt_ids)
        limit = min(room, room if config.max_tokens is None else config.max_tokens)
        done, pending = 0, list[int]()

        def output(reason: FinishReason | None, count: int) -> TokenOutput:
            ids, pending[:] = tuple(pending), []
            entries = tuple(_logprobs(i, config.logprobs) for i in ids)
            return TokenOutput(
                request.request_id,
                ids,
                len(request.prompt_ids),
                count,
                finish_reason=reason,
                logprobs=() if config.logprobs is None else entries,
            )

        for token in script.tokens:
            if done == script.fail_after:
                raise script.error
            if await self._is_cut(None if done == script.stall_after else script.delay_s):
                yield output(FinishReason.ABORT, done)
                return
            done += 1
            if token in config.stop_token_ids:
                yield output(FinishReason.STOP, done)
                return
            pending.append(token)
            if done == limit:
                yield output(FinishReason.LENGTH, done)
                return
            if len(pending) == script.tokens_per_output:
                yield output(None, done)
        if done == script.fail_after:
            raise script.error
        yield output(FinishReason.STOP, done)


def _logprobs(token: int, top: int | None) -> TokenLogprobs:
    """Invented but well-formed: the chosen token first, then its neighbours."""
    rivals = tuple((token + i, -0.5 - i) for i in range(top or 0))
    return TokenLogprobs(token, -0.5, rivals)
