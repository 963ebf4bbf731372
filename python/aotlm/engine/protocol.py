"""What the server and the command line may ask of an engine.

`AsyncEngine` runs a compiled model; a scripted engine in the tests replays token ids.
Both satisfy `EngineProtocol`, so everything above it is tested without a model.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from aotlm.request import Request, TokenOutput


class EngineStatus(StrEnum):
    """Where an engine is in its life."""

    LOADING = "loading"
    READY = "ready"
    DRAINING = "draining"
    STOPPED = "stopped"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class EngineLimits:
    """Fixed by the artifact, all counted in tokens or sequences."""

    context_window: int
    prefill_chunk: int
    max_batch_size: int


@dataclass(frozen=True, slots=True)
class EngineStats:
    """Counters since the start, and what is under way now."""

    running: int = 0
    waiting: int = 0
    steps: int = 0
    requests: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0


class EngineProtocol(Protocol):
    """An asynchronous source of tokens; every method is called on the event loop."""

    @property
    def limits(self) -> EngineLimits:
        """Limits of the loaded model. Raises EngineStopped before `start` has returned."""
        ...

    @property
    def status(self) -> EngineStatus: ...

    async def start(self) -> None:
        """Load the model. Raises ArtifactError or EngineError."""
        ...

    def generate(self, request: Request) -> AsyncIterator[TokenOutput]:
        """Continue a prompt; the last output carries the finish reason.

        Leaving the iterator early (aclose, cancellation) aborts the request.
        Raises RequestError, ContextLengthError, EngineOverloaded and EngineStopped before the
        first output, GenerationFailed or EngineStopped later.
        """
        ...

    def abort(self, request_id: str) -> None:
        """End a request at the next step; unknown ids are ignored."""
        ...

    async def stop(self, grace_s: float) -> None:
        """Refuse new requests, give running ones `grace_s` seconds, then end them."""
        ...

    def stats(self) -> EngineStats: ...
