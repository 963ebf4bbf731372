"""A compiled model driven without an engine: logits of every token, and the cache's operations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from aotlm.artifact import Artifact
from aotlm.cache.kv_cache import KVCache
from aotlm.runtime.compiled_model import CompiledModel
from aotlm.runtime.params import load_params

Floats = npt.NDArray[np.float32]


class ModelDriver:
    """One model with one cache; sequences are known by number, as the cache knows them."""

    def __init__(self, folder: Path, cache_tokens: int) -> None:
        artifact = Artifact.open(folder)
        limits = artifact.manifest.limits
        # `batch` sizes the buffer of logit positions: here every token's logits are wanted.
        self.model = CompiledModel(
            artifact.library_path,
            load_params(artifact.weights_path, artifact.manifest.weights),
            prefill_chunk=limits.prefill_chunk,
            batch=limits.prefill_chunk,
        )
        handle = self.model.create_kv_cache(
            max_batch_size=limits.max_batch_size,
            max_total_tokens=cache_tokens,
            prefill_chunk=limits.prefill_chunk,
            page_size=limits.page_size,
        )
        self.cache = KVCache(
            handle,
            max_batch_size=limits.max_batch_size,
            prefill_chunk=limits.prefill_chunk,
            page_size=limits.page_size,
        )

    def prefill(self, chunks: Mapping[int, Sequence[int]]) -> dict[int, Floats]:
        """Append tokens to sequences in one step; logits after each: float32 [tokens, vocab]."""
        lengths = [len(chunk) for chunk in chunks.values()]
        tokens = np.array([t for chunk in chunks.values() for t in chunk], np.int32)
        positions = np.arange(len(tokens), dtype=np.int32)
        with self.cache.forward(list(chunks), lengths):
            logits = self.model.prefill(tokens, positions, self.cache.handle)
            parts = np.split(logits.copy(), np.cumsum(lengths)[:-1])
        return dict(zip(chunks, parts, strict=True))

    def decode(self, tokens: Mapping[int, int]) -> dict[int, Floats]:
        """Append one token to each sequence; logits after it: float32 [vocab]."""
        with self.cache.forward(list(tokens), [1] * len(tokens)):
            ids = np.array(list(tokens.values()), np.int32)
            logits = self.model.decode(ids, self.cache.handle).copy()
        return dict(zip(tokens, logits, strict=True))

    def append(self, seq_id: int, tokens: Sequence[int], chunk: int | None = None) -> Floats:
        """Prefill a whole text, in pieces of `chunk` tokens: logits [tokens, vocab]."""
        size = chunk or self.cache.prefill_chunk
        pieces = [tokens[at : at + size] for at in range(0, len(tokens), size)]
        return np.concatenate([self.prefill({seq_id: piece})[seq_id] for piece in pieces])

    def decode_all(self, seq_id: int, tokens: Sequence[int]) -> Floats:
        """Append tokens one after another: logits [tokens, vocab]."""
        return np.stack([self.decode({seq_id: token})[seq_id] for token in tokens])
