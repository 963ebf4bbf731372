"""What a quantization scheme decides."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from aotlm_compile.checkpoint.base import Checkpoint, GroupedWeight, Weight

# grouped4, grouped8: codes of 4 or 8 bits in groups of 32 along the inputs, int8 activations.
# dense: float32 weights and activations.
Storage = Literal["grouped4", "grouped8", "dense"]


@dataclass(frozen=True, slots=True)
class Scheme:
    """A name of MLC's (or `gguf`), and the two choices behind it.

    `storage(checkpoint, tensor names)`: how the matrix made of those tensors, one below the
    other, is stored. `regroup(weight)`: a tensor's groups, when the storage is a grouped one.
    """

    name: str
    summary: str
    storage: Callable[[Checkpoint, Sequence[str]], Storage]
    regroup: Callable[[Weight], GroupedWeight]
