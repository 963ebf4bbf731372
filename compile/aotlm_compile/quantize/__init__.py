"""Quantization schemes, one a file: how each weight of a checkpoint is stored in an artifact."""

from __future__ import annotations

from aotlm.errors import CompileError

from .gguf import GGUF
from .q0f32 import Q0F32
from .q4f32_1 import Q4F32_1
from .scheme import Scheme

SCHEMES: dict[str, Scheme] = {scheme.name: scheme for scheme in (GGUF, Q0F32, Q4F32_1)}


def scheme_named(name: str) -> Scheme:
    """The scheme called `name`. Raises CompileError listing those there are."""
    if name not in SCHEMES:
        raise CompileError(f"unknown quantization {name!r}; this version has {', '.join(SCHEMES)}")
    return SCHEMES[name]


def default_scheme(checkpoint_kind: str) -> str:
    """What `--quantization` is when nobody says: keep a GGUF file's own, else 4 bits."""
    return GGUF.name if checkpoint_kind == "gguf" else Q4F32_1.name
