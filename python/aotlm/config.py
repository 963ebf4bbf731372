"""How an engine is set up: everything a caller may choose that the artifact does not fix."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from aotlm.errors import RequestError


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Settings of one engine; None means: let the artifact or the machine decide.

    `max_batch_size`: sequences under way at once, at most the artifact's.
    `cache_tokens`: size of the key-value cache in tokens; else `cache_memory_mb` (10^6 bytes)
    gives it; else a fifth of the memory that is free at start, and never more than
    max_batch_size full contexts need.
    `threads`: of the model's kernels; None is every core this process may use.
    `queue_limit`: requests that may wait beyond those a full batch holds.
    `busy_prefill_tokens`: prompt tokens per step while other sequences are decoding, so that a
    long prompt does not stall them; alone, a prompt is cut by the artifact's prefill chunk.
    `seed`: base for requests without a seed of their own; None draws one at start.
    """

    artifact: Path
    max_batch_size: int | None = None
    cache_tokens: int | None = None
    cache_memory_mb: float | None = None
    threads: int | None = None
    queue_limit: int = 256
    busy_prefill_tokens: int = 256
    seed: int | None = None

    def __post_init__(self) -> None:
        """Raises RequestError for a number that cannot be meant."""
        for name in (
            "max_batch_size",
            "cache_tokens",
            "cache_memory_mb",
            "threads",
            "busy_prefill_tokens",
        ):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise RequestError(f"{name} must be positive, not {value}", name)
        if self.queue_limit < 0:
            raise RequestError(f"queue_limit must not be negative, not {self.queue_limit}")
