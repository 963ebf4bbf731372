"""Typed door to libaotlm_native, the C++ of python/csrc; a call releases the GIL.

The structs mirror csrc/native.h field by field; `ABI` must equal what the library says.
"""

from __future__ import annotations

import ctypes
import functools
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from aotlm.errors import EngineError

if TYPE_CHECKING:
    from collections.abc import Sequence

ABI: Final = 1
LIBRARY: Final = "libaotlm_native" + (".dylib" if sys.platform == "darwin" else ".so")

STATUS_OK: Final = 0
STATUS_NOT_FINITE: Final = 1
STATUS_NO_TOKEN: Final = 2
STATUS_NO_MEMORY: Final = 3


class SampleRow(ctypes.Structure):
    """`aotlm_sample_row`: how the next token of one sequence is chosen."""

    _fields_ = (
        ("seed", ctypes.c_uint64),
        ("position", ctypes.c_uint64),
        ("tokens", ctypes.c_void_p),
        ("bias_ids", ctypes.c_void_p),
        ("bias_values", ctypes.c_void_p),
        ("num_tokens", ctypes.c_int32),
        ("num_prompt_tokens", ctypes.c_int32),
        ("num_bias", ctypes.c_int32),
        ("top_k", ctypes.c_int32),
        ("num_logprobs", ctypes.c_int32),
        ("temperature", ctypes.c_float),
        ("top_p", ctypes.c_float),
        ("min_p", ctypes.c_float),
        ("repetition_penalty", ctypes.c_float),
        ("presence_penalty", ctypes.c_float),
        ("frequency_penalty", ctypes.c_float),
    )


class SampleResult(ctypes.Structure):
    """`aotlm_sample_result`: token -1 unless status is STATUS_OK."""

    _fields_ = (
        ("token", ctypes.c_int32),
        ("status", ctypes.c_int32),
        ("logprob", ctypes.c_float),
    )


def load(folders: Sequence[str | Path] | None = None) -> ctypes.CDLL:
    """Load the library from the first of `folders` that holds it and declare its functions.

    By default those of this package: an editable install keeps sources and library apart.
    Raises EngineError when it is missing, damaged or of another version.
    """
    searched = [Path(folder) for folder in (__path__ if folders is None else folders)]
    path = next((f / LIBRARY for f in searched if (f / LIBRARY).is_file()), None)
    advice = "reinstall aotlm, or build it as python/csrc/README.md says"
    if path is None:
        raise EngineError(f"{LIBRARY} is not in {', '.join(map(str, searched))}: {advice}")
    try:
        library = ctypes.CDLL(str(path))
        library.aotlm_native_abi.restype = ctypes.c_int32
        found = int(library.aotlm_native_abi())
    except (OSError, AttributeError) as error:
        raise EngineError(
            f"the native library {path} cannot be loaded ({error}): {advice}"
        ) from None
    if found != ABI:
        raise EngineError(
            f"the native library {path} has ABI {found}, this aotlm needs {ABI}: {advice}"
        )
    library.aotlm_uniform.restype = ctypes.c_double
    library.aotlm_uniform.argtypes = [ctypes.c_uint64, ctypes.c_uint64]
    library.aotlm_sample.restype = None
    library.aotlm_sample.argtypes = [
        ctypes.c_void_p,  # logits
        ctypes.c_int64,  # batch
        ctypes.c_int64,  # vocab
        ctypes.POINTER(SampleRow),
        ctypes.POINTER(SampleResult),
        ctypes.c_void_p,  # top_ids
        ctypes.c_void_p,  # top_logprobs
        ctypes.c_int64,  # top_stride
    ]
    return library


@functools.cache
def library() -> ctypes.CDLL:
    """The library, loaded once."""
    return load()


def uniform(seed: int, position: int) -> float:
    """A number in [0, 1) that depends on its arguments only (Philox 4x32-10)."""
    return float(library().aotlm_uniform(seed & (2**64 - 1), position))
