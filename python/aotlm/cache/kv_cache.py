"""Typed wrapper over TVM's paged key-value cache, for one device and one thread.

Sequences are grown only inside `forward`, by the model's own kernels. Every request is
checked against the page budget first: TVM reports the same mistakes as internal errors, some
of them after it has changed its state.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from aotlm.cache.page_budget import PageBudget
from aotlm.errors import EngineError
from aotlm.runtime.device import load_tvm

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


class KVCache:
    """The cache object that `create_kv_cache` of a compiled model returned.

    `handle`: TVM's cache; `max_batch_size`: sequences in one forward call; `prefill_chunk`:
    tokens in one forward call; `page_size`: tokens in a page.
    """

    def __init__(
        self, handle: Any, *, max_batch_size: int, prefill_chunk: int, page_size: int
    ) -> None:
        modules = load_tvm()
        function = modules.tvm.get_global_func
        self.handle = handle
        self.max_batch_size = max_batch_size
        self.prefill_chunk = prefill_chunk
        self._shape = modules.ffi.Shape
        self._add = function("vm.builtin.kv_state_add_sequence")
        self._remove = function("vm.builtin.kv_state_remove_sequence")
        self._fork = function("vm.builtin.kv_state_fork_sequence")
        self._pop = function("vm.builtin.kv_state_popn")
        self._clear = function("vm.builtin.kv_state_clear")
        self._begin = function("vm.builtin.kv_state_begin_forward")
        self._end = function("vm.builtin.kv_state_end_forward")
        self._available = function("vm.builtin.attention_kv_cache_get_num_available_pages")
        self._total_length = function("vm.builtin.attention_kv_cache_get_total_sequence_length")
        self.pages = PageBudget(int(self._available(handle)), page_size)

    def add(self, seq_id: int) -> None:
        """Begin an empty sequence. Raises EngineError when the id is taken or negative."""
        self.pages.add(seq_id)
        self._add(self.handle, seq_id)

    def remove(self, seq_id: int) -> None:
        """Forget a sequence and free the pages it shares with nobody. Raises EngineError."""
        self.pages.remove(seq_id)
        self._remove(self.handle, seq_id)

    def fork(self, parent_id: int, child_id: int, position: int) -> None:
        """Begin `child_id` with the first `position` tokens of `parent_id`. Raises EngineError."""
        self.pages.fork(parent_id, child_id, position)
        self._fork(self.handle, parent_id, child_id, position)

    def popn(self, seq_id: int, num_tokens: int) -> None:
        """Drop the last `num_tokens` tokens of a sequence. Raises EngineError."""
        self.pages.pop(seq_id, num_tokens)
        self._pop(self.handle, seq_id, num_tokens)

    def clear(self) -> None:
        """Forget every sequence."""
        self.pages.clear()
        self._clear(self.handle)

    @contextmanager
    def forward(self, seq_ids: Sequence[int], lengths: Sequence[int]) -> Iterator[None]:
        """Make room for `lengths[i]` new tokens of `seq_ids[i]` while the body runs the model.

        When the body raises, the room is given back: the cache is as before.
        Raises EngineError for an unknown or repeated sequence, an empty or too large batch,
        or when pages are lacking.
        """
        self._check_batch(seq_ids, lengths)
        self._begin(self.handle, self._shape(seq_ids), self._shape(lengths))
        for seq_id, length in zip(seq_ids, lengths, strict=True):
            self.pages.append(seq_id, length)
        try:
            yield
        except BaseException:
            self._end(self.handle)
            for seq_id, length in zip(seq_ids, lengths, strict=True):
                self.popn(seq_id, length)
            raise
        self._end(self.handle)

    def check_integrity(self) -> None:
        """Raises AssertionError when the budget and TVM disagree."""
        self.pages.check_integrity()
        available = int(self._available(self.handle))
        assert available == self.pages.free, f"{available} pages free, {self.pages.free} expected"
        total = int(self._total_length(self.handle))
        expected = sum(self.pages.length(seq_id) for seq_id in self.pages.sequences)
        assert total == expected, f"{total} tokens cached, {expected} expected"

    def _check_batch(self, seq_ids: Sequence[int], lengths: Sequence[int]) -> None:
        assert len(seq_ids) == len(lengths)
        if not 0 < len(seq_ids) <= self.max_batch_size:
            raise EngineError(
                f"KV cache: a batch of {len(seq_ids)} sequences, 1 to {self.max_batch_size} fit"
            )
        if len(set(seq_ids)) != len(seq_ids):
            raise EngineError("KV cache: one sequence occurs twice in a batch")
        if min(lengths) < 1:
            raise EngineError("KV cache: every sequence of a batch must bring a token")
        if sum(lengths) > self.prefill_chunk:
            raise EngineError(
                f"KV cache: a batch of {sum(lengths)} tokens, at most {self.prefill_chunk} fit"
            )
        needed = sum(map(self.pages.pages_to_append, seq_ids, lengths))
        if needed > self.pages.free:
            raise EngineError(
                f"KV cache: {needed} pages needed for this batch, {self.pages.free} are free"
            )
