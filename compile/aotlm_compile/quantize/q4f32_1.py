"""`q4f32_1`: symmetric 4-bit groups of 32, as MLC's scheme of that name.

scale = max|w| / 7, value = clip(round(w / scale), -7, 7) * scale. Ours keeps the scale in float16,
rounded before the codes are chosen, and counts codes from 8 (MLC: from 7): the minimum is then
-8 * scale, which float16 holds exactly, so that zeros stay zeros.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from aotlm.errors import CheckpointError
from aotlm_compile.checkpoint.base import GROUP, Checkpoint, GroupedWeight, Weight

from .scheme import Scheme, Storage

LARGEST = 7
ZERO = 8  # the code of 0


def _storage(checkpoint: Checkpoint, names: Sequence[str]) -> Storage:
    return "grouped4"


def quantize(values: npt.NDArray[np.float32]) -> GroupedWeight:
    """float32 [rows, cols] -> groups; columns are padded with zeros to a multiple of 32.

    Raises CheckpointError for values that are not finite or too large for a float16 scale.
    """
    rows, cols = values.shape
    padded = np.pad(values, ((0, 0), (0, -cols % GROUP))).reshape(rows, -1, GROUP)
    with np.errstate(over="ignore", invalid="ignore"):
        scale = (np.abs(padded).max(axis=-1) / np.float32(LARGEST)).astype(np.float16)
        minimum = scale * np.float16(-ZERO)
    if not np.isfinite(minimum).all():
        raise CheckpointError("a weight is not finite or too large for 4-bit groups")
    step = scale.astype(np.float32)[:, :, None]
    steps = np.rint(np.divide(padded, step, out=np.zeros_like(padded), where=step > 0))
    codes = (np.clip(steps, -LARGEST, LARGEST) + ZERO).astype(np.uint8)
    return GroupedWeight(codes.reshape(rows, -1), scale, minimum, bits=4)


def _regroup(weight: Weight) -> GroupedWeight:
    return quantize(weight.float32())


Q4F32_1 = Scheme("q4f32_1", "symmetric 4-bit groups of 32", _storage, _regroup)
