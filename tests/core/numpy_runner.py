"""A model of a few lines whose next token depends on every cached token of its sequence.

It keeps the tokens themselves as its "cache", checks each call against the page budget as the
real one does, and can be told to fail.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from aotlm.cache.page_budget import PageBudget
from aotlm.engine.protocol import EngineLimits

VOCAB = 50


def next_logits(tokens: Sequence[int]) -> NDArray[np.float32]:
    """float32 [VOCAB]: a hash of the whole sequence, spread over a few units."""
    digest = 17
    for token in tokens:
        digest = (digest * 1_000_003 + token + 1) % (2**61 - 1)
    return np.random.default_rng(digest).normal(0, 2, VOCAB).astype(np.float32)


def greedy_continuation(prompt: Sequence[int], count: int) -> list[int]:
    """What a greedy request must answer, computed without any engine."""
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(int(next_logits(tokens).argmax()))
    return tokens[len(prompt) :]


class NumpyRunner:
    """Satisfies `ModelRunner`. `hook(seq_ids)` runs before each forward pass and may raise."""

    def __init__(
        self,
        *,
        num_pages: int = 64,
        page_size: int = 4,
        limits: EngineLimits | None = None,
    ) -> None:
        self.limits = limits or EngineLimits(context_window=64, prefill_chunk=16, max_batch_size=4)
        self.vocab_size = VOCAB
        self.pages = PageBudget(num_pages, page_size)
        self.cached: dict[int, list[int]] = {}
        self.hook: Callable[[Sequence[int]], None] = lambda seq_ids: None
        self.calls: list[tuple[str, int]] = []  # (kind, tokens) of each forward pass

    def add(self, seq_id: int) -> None:
        self.pages.add(seq_id)
        self.cached[seq_id] = []

    def remove(self, seq_id: int) -> None:
        self.pages.remove(seq_id)
        del self.cached[seq_id]

    def clear(self) -> None:
        self.pages.clear()
        self.cached.clear()

    def prefill(
        self,
        seq_ids: Sequence[int],
        lengths: Sequence[int],
        token_ids: NDArray[np.int32],
        logit_positions: NDArray[np.int32],
    ) -> NDArray[np.float32]:
        assert token_ids.dtype == logit_positions.dtype == np.int32
        assert sum(lengths) == len(token_ids) <= self.limits.prefill_chunk
        assert len(logit_positions) >= 1
        self._begin("prefill", seq_ids, lengths)
        per_token = []
        tokens = iter(token_ids.tolist())
        for seq_id, length in zip(seq_ids, lengths, strict=True):
            for _ in range(length):
                self.cached[seq_id].append(next(tokens))
                per_token.append(tuple(self.cached[seq_id]))
        return np.stack([next_logits(per_token[i]) for i in logit_positions.tolist()])

    def decode(self, seq_ids: Sequence[int], token_ids: NDArray[np.int32]) -> NDArray[np.float32]:
        assert token_ids.dtype == np.int32
        assert all(self.cached[seq_id] for seq_id in seq_ids)
        self._begin("decode", seq_ids, [1] * len(seq_ids))
        for seq_id, token in zip(seq_ids, token_ids.tolist(), strict=True):
            self.cached[seq_id].append(token)
        return np.stack([next_logits(self.cached[seq_id]) for seq_id in seq_ids])

    def check_integrity(self) -> None:
        self.pages.check_integrity()
        lengths = {seq_id: self.pages.length(seq_id) for seq_id in self.pages.sequences}
        assert lengths == {seq_id: len(tokens) for seq_id, tokens in self.cached.items()}

    def _begin(self, kind: str, seq_ids: Sequence[int], lengths: Sequence[int]) -> None:
        assert 0 < len(set(seq_ids)) == len(seq_ids) <= self.limits.max_batch_size
        self.hook(seq_ids)
        self.calls.append((kind, sum(lengths)))
        for seq_id, length in zip(seq_ids, lengths, strict=True):
            self.pages.append(seq_id, length)
