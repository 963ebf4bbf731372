"""Rotary-embedding scaling as GGUF tells it, translated to Hugging Face's `rope_scaling`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from aotlm.errors import CheckpointError

from .gguf_container import Value

# What every Llama 3.x release uses; the file holds only the factors computed from them.
_LOW, _HIGH, _ORIGINAL = 1.0, 4.0, 8192


def rope_scaling_from_metadata(
    metadata: Mapping[str, Value], architecture: str, where: str
) -> dict[str, Any] | None:
    """`rope_scaling` from the keys `<architecture>.rope.scaling.*`, or None without scaling."""
    prefix = f"{architecture}.rope.scaling"
    kind = metadata.get(f"{prefix}.type", "none")
    if kind == "none":
        return None
    factor = metadata.get(f"{prefix}.factor")
    if isinstance(factor, bool) or not isinstance(factor, (int, float)) or factor <= 0:
        raise CheckpointError(f"{where}: metadata key '{prefix}.factor' is not a positive number")
    if not isinstance(kind, str):
        raise CheckpointError(f"{where}: metadata key '{prefix}.type' is not a string")
    result: dict[str, Any] = {"rope_type": kind, "factor": float(factor)}
    original = metadata.get(f"{prefix}.original_context_length")
    if isinstance(original, int) and not isinstance(original, bool):
        result["original_max_position_embeddings"] = original
    return result


def rope_scaling_from_factors(
    factors: npt.NDArray[np.float32], theta: float, head_dim: int, where: str
) -> dict[str, Any]:
    """`rope_scaling` of kind llama3 from its per-frequency factors: float32 [head_dim / 2].

    Raises CheckpointError when the factors are not those of Llama 3.x.
    """
    if factors.shape != (head_dim // 2,) or not np.isfinite(factors).all():
        raise CheckpointError(f"{where} does not hold {head_dim // 2} factors")
    scaling = {
        "rope_type": "llama3",
        "factor": float(factors.max()),
        "low_freq_factor": _LOW,
        "high_freq_factor": _HIGH,
        "original_max_position_embeddings": _ORIGINAL,
    }
    expected = llama3_factors(float(factors.max()), theta, head_dim)
    if not np.allclose(factors, expected, rtol=1e-3):
        raise CheckpointError(f"{where} is not the frequency scaling of Llama 3; not supported")
    return scaling


def llama3_factors(factor: float, theta: float, head_dim: int) -> npt.NDArray[np.float32]:
    """By how much each rotary frequency is divided: float32 [head_dim / 2].

    Long waves by `factor`, short ones by 1, those between smoothly (Llama 3.1 model card).
    """
    result = []
    for index in range(0, head_dim, 2):
        wave = 2 * math.pi * theta ** (index / head_dim)
        if wave < _ORIGINAL / _HIGH:
            result.append(1.0)
        elif wave > _ORIGINAL / _LOW:
            result.append(factor)
        else:
            smooth = (_ORIGINAL / wave - _LOW) / (_HIGH - _LOW)
            result.append(1 / ((1 - smooth) / factor + smooth))
    return np.array(result, dtype=np.float32)
