"""Packing weights into the layouts the CPU kernels read (see `kernels.cpu.matmul_grouped`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from aotlm_compile.checkpoint.base import GROUP, GroupedWeight

ROWS = 16


def stack(weights: Sequence[GroupedWeight]) -> GroupedWeight:
    """Matrices one below the other; 8 bits when any has 8."""
    bits: Literal[4, 8] = 8 if any(w.bits == 8 for w in weights) else 4
    return GroupedWeight(
        np.concatenate([w.codes for w in weights]),
        np.concatenate([w.scale for w in weights]),
        np.concatenate([w.minimum for w in weights]),
        bits=bits,
    )


def pack_codes(codes: npt.NDArray[np.uint8], bits: int) -> npt.NDArray[np.uint8]:
    """uint8 [rows, cols] -> uint8 [ceil(rows / 16), cols / 32, 4 or 8, 64]."""
    padded = _pad_rows(codes)
    blocks, groups = padded.shape[0] // ROWS, padded.shape[1] // GROUP
    if bits == 8:
        # block, row, group, vector, byte -> block, group, vector, row, byte
        split = padded.reshape(blocks, ROWS, groups, 8, 4)
        return np.ascontiguousarray(split.transpose(0, 2, 3, 1, 4)).reshape(blocks, groups, 8, 64)
    halves = padded.reshape(blocks, ROWS, groups, 2, 4, 4)
    both = halves[:, :, :, 0] | (halves[:, :, :, 1] << 4)
    return np.ascontiguousarray(both.transpose(0, 2, 3, 1, 4)).reshape(blocks, groups, 4, 64)


def pack_scales(weight: GroupedWeight) -> npt.NDArray[np.float16]:
    """scale and minimum float16 [rows, groups] -> float16 [ceil(rows / 16), groups, 2, 16]."""
    both = np.stack([_pad_rows(weight.scale), _pad_rows(weight.minimum)], axis=1)
    blocks, groups = both.shape[0] // ROWS, both.shape[2]
    return np.ascontiguousarray(both.reshape(blocks, ROWS, 2, groups).transpose(0, 3, 2, 1))


def pack_dense(values: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """float32 [rows, cols] -> float32 [ceil(rows / 16), cols, 16]."""
    padded = _pad_rows(values)
    blocks = padded.shape[0] // ROWS
    return np.ascontiguousarray(padded.reshape(blocks, ROWS, -1).transpose(0, 2, 1))


def _pad_rows(matrix: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return np.pad(matrix, ((0, -matrix.shape[0] % ROWS), (0, 0)))
