"""From settings to a running engine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aotlm.engine.engine import Engine
from aotlm.runtime.model_runner import open_runner

if TYPE_CHECKING:
    from aotlm.config import EngineConfig


def load_engine(config: EngineConfig) -> Engine:
    """An engine for the artifact, on the calling thread. Raises ArtifactError or EngineError."""
    return Engine(
        open_runner(config),
        queue_limit=config.queue_limit,
        busy_prefill_tokens=config.busy_prefill_tokens,
        seed=config.seed,
    )
