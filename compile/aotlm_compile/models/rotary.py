"""Rotary frequencies from a config.json, scaling included."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from aotlm.errors import CheckpointError


def rotary_frequencies(config: Mapping[str, Any], head_dim: int) -> tuple[float, ...]:
    """The angle per position of each pair of features: theta^(-2i / head_dim), scaled.

    Knows no scaling, `linear` and `llama3` (Llama 3.1 model card). Raises CheckpointError for
    others.
    """
    # transformers 5 moved theta and the scaling into one entry, rope_parameters.
    scaling = config.get("rope_parameters") or config.get("rope_scaling") or {}
    theta = float(scaling.get("rope_theta") or config.get("rope_theta") or 10000.0)
    plain = tuple(theta ** (-2 * i / head_dim) for i in range(head_dim // 2))
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if kind == "default":
        return plain
    try:
        if kind == "linear":
            return tuple(f / float(scaling["factor"]) for f in plain)
        if kind == "llama3":
            return tuple(_llama3(f, scaling) for f in plain)
    except (KeyError, TypeError, ValueError, ZeroDivisionError) as error:
        raise CheckpointError(
            f"config.json: rope_scaling of type {kind!r} is malformed: {error}"
        ) from error
    raise CheckpointError(
        f"config.json: rope_scaling of type {kind!r} is not supported; "
        "supported: default, linear, llama3"
    )


def _llama3(frequency: float, scaling: Mapping[str, Any]) -> float:
    factor = float(scaling["factor"])
    low, high = float(scaling["low_freq_factor"]), float(scaling["high_freq_factor"])
    original = float(scaling["original_max_position_embeddings"])
    wave = 2 * math.pi / frequency
    if wave < original / high:
        return frequency
    if wave > original / low:
        return frequency / factor
    smooth = (original / wave - low) / (high - low)
    return (1 - smooth) * frequency / factor + smooth * frequency
