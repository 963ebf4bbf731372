"""A compiled model with its cache: what the engine calls a ModelRunner."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aotlm.artifact import Artifact
from aotlm.cache.kv_cache import KVCache
from aotlm.engine.protocol import EngineLimits
from aotlm.errors import EngineError, RequestError
from aotlm.runtime.compiled_model import CompiledModel
from aotlm.runtime.device import available_memory, load_tvm

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

    from aotlm.artifact import Manifest
    from aotlm.cache.page_budget import PageBudget
    from aotlm.config import EngineConfig

_MEMORY_SHARE = 0.2  # of the available memory goes to the cache when nothing else is said
_CACHE_ITEM_BYTES = 4  # float32


class CompiledRunner:
    """Satisfies `aotlm.engine.model_runner.ModelRunner`."""

    def __init__(
        self, model: CompiledModel, cache: KVCache, limits: EngineLimits, vocab_size: int
    ) -> None:
        self._model = model
        self._cache = cache
        self.limits = limits
        self.vocab_size = vocab_size
        self.pages: PageBudget = cache.pages
        self.add = cache.add
        self.remove = cache.remove
        self.clear = cache.clear
        self.check_integrity = cache.check_integrity

    def prefill(
        self,
        seq_ids: Sequence[int],
        lengths: Sequence[int],
        token_ids: NDArray[np.int32],
        logit_positions: NDArray[np.int32],
    ) -> NDArray[np.float32]:
        """See `ModelRunner.prefill`."""
        with self._cache.forward(seq_ids, lengths):
            return self._model.prefill(token_ids, logit_positions, self._cache.handle)

    def decode(self, seq_ids: Sequence[int], token_ids: NDArray[np.int32]) -> NDArray[np.float32]:
        """See `ModelRunner.decode`."""
        with self._cache.forward(seq_ids, [1] * len(seq_ids)):
            return self._model.decode(token_ids, self._cache.handle)


def open_runner(config: EngineConfig) -> CompiledRunner:
    """Load an artifact for this thread. Raises ArtifactError, EngineError or RequestError."""
    artifact = Artifact.open(config.artifact)
    limits = engine_limits(artifact.manifest, config)
    load_tvm(config.threads)  # before anything else imports tvm with other settings
    model = CompiledModel.from_artifact(artifact)
    page_size = artifact.manifest.limits.page_size
    tokens = cache_tokens(artifact.manifest, config, limits)
    try:
        handle = model.create_kv_cache(
            max_batch_size=limits.max_batch_size,
            max_total_tokens=tokens,
            prefill_chunk=limits.prefill_chunk,
            page_size=page_size,
        )
    except Exception as error:
        raise EngineError(
            f"a KV cache of {tokens} tokens cannot be made ({error}): give it less memory"
        ) from None
    cache = KVCache(
        handle,
        max_batch_size=limits.max_batch_size,
        prefill_chunk=limits.prefill_chunk,
        page_size=page_size,
    )
    return CompiledRunner(model, cache, limits, artifact.manifest.model.vocab_size)


def engine_limits(manifest: Manifest, config: EngineConfig) -> EngineLimits:
    """The artifact's limits, narrowed by the config. Raises RequestError when it asks for more."""
    limits = manifest.limits
    batch = config.max_batch_size or limits.max_batch_size
    if batch > limits.max_batch_size:
        raise RequestError(
            f"max_batch_size {batch} was asked for, the artifact {config.artifact} was compiled "
            f"for {limits.max_batch_size}: lower it, or compile with --max-batch-size {batch}",
            "max_batch_size",
        )
    return EngineLimits(limits.context_window, limits.prefill_chunk, batch)


def cache_tokens(
    manifest: Manifest,
    config: EngineConfig,
    limits: EngineLimits,
    memory: int | None = None,
) -> int:
    """Tokens the cache shall hold, as `EngineConfig` says; at least one page.

    `memory`: available bytes, None asks the system.
    """
    model = manifest.model
    per_token = 2 * model.num_layers * model.num_kv_heads * model.head_dim * _CACHE_ITEM_BYTES
    page_size = manifest.limits.page_size
    if config.cache_tokens is not None:
        tokens = config.cache_tokens
    elif config.cache_memory_mb is not None:
        tokens = int(config.cache_memory_mb * 1e6) // per_token
    else:
        share = available_memory() if memory is None else memory
        tokens = min(
            limits.context_window * limits.max_batch_size, int(share * _MEMORY_SHARE) // per_token
        )
    return max(page_size, tokens // page_size * page_size)
