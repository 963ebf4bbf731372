"""What the engine needs of a model: forward passes over cached sequences.

`aotlm.runtime.model_runner.CompiledRunner` runs a compiled artifact; the tests have one of
a few lines of NumPy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

    from aotlm.cache.page_budget import PageBudget
    from aotlm.engine.protocol import EngineLimits


class ModelRunner(Protocol):
    """Not thread-safe: every method is called on the thread that made it.

    A forward pass that raises leaves the cache as it was before. EngineStopped means that the
    device is lost; any other exception concerns this batch.
    """

    @property
    def limits(self) -> EngineLimits: ...

    @property
    def vocab_size(self) -> int: ...

    @property
    def pages(self) -> PageBudget:
        """Pages of the cache; only the runner changes them."""
        ...

    def add(self, seq_id: int) -> None:
        """Begin an empty sequence in the cache."""
        ...

    def remove(self, seq_id: int) -> None:
        """Forget a sequence and free its pages."""
        ...

    def clear(self) -> None:
        """Forget every sequence."""
        ...

    def prefill(
        self,
        seq_ids: Sequence[int],
        lengths: Sequence[int],
        token_ids: NDArray[np.int32],
        logit_positions: NDArray[np.int32],
    ) -> NDArray[np.float32]:
        """Append `lengths[i]` tokens to sequence `seq_ids[i]`.

        `token_ids`: int32 [num_tokens], the chunks one after another;
        `logit_positions`: int32 [wanted], indices into the num_tokens axis, at least one.
        Returns logits float32 [wanted, vocab], valid until the next forward pass.
        """
        ...

    def decode(self, seq_ids: Sequence[int], token_ids: NDArray[np.int32]) -> NDArray[np.float32]:
        """Append one token to each sequence; each must hold one at least.

        `token_ids`: int32 [batch]. Returns logits float32 [batch, vocab], valid until the
        next forward pass.
        """
        ...

    def check_integrity(self) -> None:
        """Raises AssertionError when the cache contradicts its page counts."""
        ...
