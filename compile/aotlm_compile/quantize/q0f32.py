"""`q0f32`: no quantization; float32 weights and activations."""

from __future__ import annotations

from collections.abc import Sequence

from aotlm_compile.checkpoint.base import Checkpoint, GroupedWeight, Weight

from .scheme import Scheme, Storage


def _storage(checkpoint: Checkpoint, names: Sequence[str]) -> Storage:
    return "dense"


def _regroup(weight: Weight) -> GroupedWeight:
    raise AssertionError("q0f32 stores no groups")


Q0F32 = Scheme("q0f32", "float32 weights and activations", _storage, _regroup)
