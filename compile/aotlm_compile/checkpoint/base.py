"""What the compiler asks of a checkpoint, whatever its format.

Names of tensors and keys of `config` are those of Hugging Face; readers of other formats
translate. Weights are handed out one at a time, so a checkpoint never sits in memory whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

from aotlm.errors import CheckpointError

GROUP = 32  # values that share one scale and one minimum


@dataclass(frozen=True, slots=True, eq=False)
class DenseWeight:
    """A weight stored value by value: float32, float16 or ml_dtypes.bfloat16, any shape."""

    values: npt.NDArray[Any]

    @property
    def shape(self) -> tuple[int, ...]:
        return self.values.shape

    def float32(self) -> npt.NDArray[np.float32]:
        """The values as float32, contiguous, same shape."""
        return np.ascontiguousarray(self.values, dtype=np.float32)

    def take_rows(self, order: npt.NDArray[np.intp]) -> DenseWeight:
        """The weight with its first axis in the given order."""
        return DenseWeight(self.values[order])


@dataclass(frozen=True, slots=True, eq=False)
class GroupedWeight:
    """A quantized matrix: value = codes * scale + minimum, groups of 32 along the columns.

    codes: uint8 [rows, cols]; scale, minimum: float16 [rows, cols / 32]; bits: 4 or 8.
    """

    codes: npt.NDArray[np.uint8]
    scale: npt.NDArray[np.float16]
    minimum: npt.NDArray[np.float16]
    bits: Literal[4, 8]

    @property
    def shape(self) -> tuple[int, ...]:
        return self.codes.shape

    def dequantize(self) -> npt.NDArray[np.float32]:
        """The values as float32 [rows, cols]."""
        rows, cols = self.codes.shape
        grouped = self.codes.reshape(rows, cols // GROUP, GROUP).astype(np.float32)
        grouped *= self.scale.astype(np.float32)[:, :, None]
        grouped += self.minimum.astype(np.float32)[:, :, None]
        return grouped.reshape(rows, cols)

    def float32(self) -> npt.NDArray[np.float32]:
        """Same as `dequantize`, so that either kind of weight can be asked."""
        return self.dequantize()

    def take_rows(self, order: npt.NDArray[np.intp]) -> GroupedWeight:
        """The weight with its rows in the given order."""
        return GroupedWeight(
            self.codes[order], self.scale[order], self.minimum[order], bits=self.bits
        )


Weight = DenseWeight | GroupedWeight
TokenIds = tuple[int | None, tuple[int, ...], bool]  # (bos_id, eos_ids, add_bos)


class Checkpoint(Protocol):
    """An opened checkpoint."""

    @property
    def kind(self) -> Literal["gguf", "safetensors"]: ...

    @property
    def name(self) -> str:
        """File or folder name without its ending."""
        ...

    @property
    def fingerprint(self) -> str:
        """SHA-256 (hex) over the content; computed when first asked for."""
        ...

    @property
    def config(self) -> Mapping[str, Any]:
        """The keys of Hugging Face's config.json."""
        ...

    def tensor_names(self) -> tuple[str, ...]: ...

    def shape(self, name: str) -> tuple[int, ...]:
        """Rows first. Raises CheckpointError that names tensor and file."""
        ...

    def bits(self, name: str) -> Literal[4, 8] | None:
        """Bits of a weight stored in groups, told without reading it; None when dense.

        Raises CheckpointError that names tensor and file.
        """
        ...

    def load(self, name: str) -> Weight:
        """One weight. Raises CheckpointError that names tensor and file."""
        ...

    def tokenizer_json(self) -> dict[str, Any]:
        """The tokenizer in the format of Hugging Face's tokenizer.json."""
        ...

    def chat_template(self) -> str | None:
        """The model's own Jinja template."""
        ...

    def tokens(self) -> TokenIds:
        """(bos_id, eos_ids, add_bos)."""
        ...

    def generation_defaults(self) -> dict[str, float | int]:
        """Any of temperature, top_p, top_k, repetition_penalty that the checkpoint suggests."""
        ...


def positive(config: Mapping[str, Any], key: str, where: str, limit: int = 2**31 - 1) -> int:
    """The integer `config[key]` in 1..limit. Raises CheckpointError that names key and place."""
    value = config.get(key)
    if isinstance(value, bool) or not isinstance(value, int):
        problem = "is missing" if value is None else f"is not an integer ({value!r:.40})"
        raise CheckpointError(f"{where}: {key} {problem}")
    if not 1 <= value <= limit:
        raise CheckpointError(f"{where}: {key} is {value}; it must lie in 1..{limit}")
    return value
