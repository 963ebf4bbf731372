"""How GGUF stores tensor values: the known types, and the decoding of those we read.

Block layouts: https://github.com/ggml-org/ggml/blob/master/src/ggml-common.h
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import ml_dtypes
import numpy as np
import numpy.typing as npt

from aotlm.errors import CheckpointError

from .base import GROUP, DenseWeight, GroupedWeight, Weight


@dataclass(frozen=True, slots=True)
class BlockType:
    """A ggml type: every `values` values of a row take `nbytes` bytes."""

    name: str
    values: int
    nbytes: int


TYPES: dict[int, BlockType] = {
    number: BlockType(name, values, nbytes)
    for number, name, values, nbytes in (
        (0, "F32", 1, 4),
        (1, "F16", 1, 2),
        (2, "Q4_0", 32, 18),
        (3, "Q4_1", 32, 20),
        (6, "Q5_0", 32, 22),
        (7, "Q5_1", 32, 24),
        (8, "Q8_0", 32, 34),
        (9, "Q8_1", 32, 36),
        (10, "Q2_K", 256, 84),
        (11, "Q3_K", 256, 110),
        (12, "Q4_K", 256, 144),
        (13, "Q5_K", 256, 176),
        (14, "Q6_K", 256, 210),
        (15, "Q8_K", 256, 292),
        (16, "IQ2_XXS", 256, 66),
        (17, "IQ2_XS", 256, 74),
        (18, "IQ3_XXS", 256, 98),
        (19, "IQ1_S", 256, 50),
        (20, "IQ4_NL", 32, 18),
        (21, "IQ3_S", 256, 110),
        (22, "IQ2_S", 256, 82),
        (23, "IQ4_XS", 256, 136),
        (24, "I8", 1, 1),
        (25, "I16", 1, 2),
        (26, "I32", 1, 4),
        (27, "I64", 1, 8),
        (28, "F64", 1, 8),
        (29, "IQ1_M", 256, 56),
        (30, "BF16", 1, 2),
        (34, "TQ1_0", 256, 54),
        (35, "TQ2_0", 256, 66),
        (39, "MXFP4", 32, 17),
        (40, "NVFP4", 64, 36),
        (41, "Q1_0", 128, 18),
    )
}
SUPPORTED = ("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q8_0")
GROUPED_BITS: dict[str, Literal[4, 8]] = {"Q4_0": 4, "Q4_1": 4, "Q8_0": 8}
_DENSE: dict[str, npt.DTypeLike] = {"F32": "<f4", "F16": "<f2", "BF16": ml_dtypes.bfloat16}


def decode(
    stored: npt.NDArray[np.uint8], kind: BlockType, shape: tuple[int, ...], where: str
) -> Weight:
    """The weight held in `stored` (uint8 [nbytes]).

    Raises CheckpointError, with `where` in the message, for a type that is not read and for
    a quantized tensor that is not a matrix.
    """
    if kind.name in _DENSE:
        return DenseWeight(stored.view(_DENSE[kind.name]).reshape(shape))
    check_supported(kind, where)
    if len(shape) != 2:
        raise CheckpointError(f"{where}: a {kind.name} tensor must be a matrix, not {list(shape)}")
    blocks = stored.reshape(shape[0], shape[1] // GROUP, kind.nbytes)
    scale = _halves(blocks, 0)
    if kind.name == "Q8_0":
        # Signed bytes become unsigned codes: flipping the top bit adds 128.
        return _grouped(
            blocks[:, :, 2:] ^ np.uint8(0x80), scale, scale * np.float16(-128), 8, where
        )
    if kind.name == "Q4_1":
        return _grouped(_nibbles(blocks[:, :, 4:]), scale, _halves(blocks, 2), 4, where)
    return _grouped(_nibbles(blocks[:, :, 2:]), scale, scale * np.float16(-8), 4, where)


def check_supported(kind: BlockType, where: str) -> None:
    """Raises CheckpointError, with `where` in the message, for a type that is not read."""
    if kind.name not in SUPPORTED:
        raise CheckpointError(
            f"{where} has type {kind.name}, which is not supported; "
            f"supported: {', '.join(SUPPORTED)}"
        )


def _halves(blocks: npt.NDArray[np.uint8], at: int) -> npt.NDArray[np.float16]:
    rows, groups, _ = blocks.shape
    pair = np.ascontiguousarray(blocks[:, :, at : at + 2])
    return pair.view("<f2").reshape(rows, groups).astype(np.float16, copy=False)


def _nibbles(packed: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    # Byte i of a block holds value i in its low half and value i + 16 in its high half.
    return np.concatenate([packed & 0x0F, packed >> 4], axis=-1)


def _grouped(
    codes: npt.NDArray[np.uint8],
    scale: npt.NDArray[np.float16],
    minimum: npt.NDArray[np.float16],
    bits: Literal[4, 8],
    where: str,
) -> GroupedWeight:
    if not (np.isfinite(scale).all() and np.isfinite(minimum).all()):
        raise CheckpointError(f"{where} has scales that are not finite: the file is damaged")
    rows, groups = scale.shape
    return GroupedWeight(
        np.ascontiguousarray(codes).reshape(rows, groups * GROUP),
        scale,
        minimum,
        bits,
    )
