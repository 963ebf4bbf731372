"""The way of one request's tokens from the engine thread to its reader on the event loop."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from aotlm.request import TokenOutput

if TYPE_CHECKING:
    from aotlm.errors import AotlmError
    from aotlm.request import Request


class Stream:
    """Used on the event loop only.

    A slow reader never holds up the engine: what gathers meanwhile becomes one output, so
    that at most one context window of token ids is ever kept.
    """

    def __init__(self, request: Request) -> None:
        self.request = request
        self.ended = False  # the engine holds nothing for it any more
        self._outputs: list[TokenOutput] = []
        self._error: AotlmError | None = None
        self._news = asyncio.Event()

    def push(self, output: TokenOutput) -> None:
        self._outputs.append(output)
        self.ended = output.finish_reason is not None
        self._news.set()

    def fail(self, error: AotlmError) -> None:
        """End with an error, raised when what came before it has been read."""
        if not self.ended:
            self._error = error
            self.ended = True
            self._news.set()

    async def next(self) -> TokenOutput:
        """What came since the last call, waiting for it if need be. Raises the error."""
        while not self._outputs:
            if self._error is not None:
                raise self._error
            self._news.clear()
            await self._news.wait()
        outputs, self._outputs = self._outputs, []
        return outputs[0] if len(outputs) == 1 else _merge(outputs)


def _merge(outputs: list[TokenOutput]) -> TokenOutput:
    last = outputs[-1]
    return TokenOutput(
        request_id=last.request_id,
        token_ids=tuple(token for output in outputs for token in output.token_ids),
        prompt_tokens=last.prompt_tokens,
        completion_tokens=last.completion_tokens,
        cached_tokens=last.cached_tokens,
        finish_reason=last.finish_reason,
        logprobs=tuple(entry for output in outputs for entry in output.logprobs),
    )
