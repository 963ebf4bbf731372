"""One .safetensors file: its table of tensors, and their bytes memory-mapped.

Format: https://github.com/huggingface/safetensors#format. Read here rather than by a library
so that every offset is checked before it is used and bfloat16 needs no other framework.
"""

from __future__ import annotations

import itertools
import json
import math
import mmap
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

import ml_dtypes
import numpy as np
import numpy.typing as npt

from aotlm.errors import CheckpointError

from .base import DenseWeight

MAX_HEADER_BYTES = 32 << 20
MAX_DIMS = 8
_DTYPES: dict[str, npt.DTypeLike] = {"F32": "<f4", "F16": "<f2", "BF16": ml_dtypes.bfloat16}


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """One tensor of the file. `start` and `end` count bytes from the start of the file."""

    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int


class SafetensorsFile:
    """An opened file: `entries` by name, and `load`. Raises CheckpointError."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with path.open("rb") as file:
                self._size = path.stat().st_size
                length = int.from_bytes(file.read(8), "little")
                if self._size < 8 or length > self._size - 8:
                    raise self._bad("truncated or not a safetensors file; download it again")
                if length > MAX_HEADER_BYTES:
                    raise self._bad(
                        f"the header has {length} bytes; the most is {MAX_HEADER_BYTES}"
                    )
                header = file.read(length)
                self._data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except OSError as error:
            raise CheckpointError(f"cannot read {path}: {error.strerror or error}") from error
        self.entries = self._parse(header, 8 + length)

    def load(self, name: str) -> DenseWeight:
        """The tensor as a read-only view of the mapped file."""
        entry = self.entries.get(name)
        if entry is None:
            raise CheckpointError(f"tensor {name!r} is missing from {self.path}")
        if entry.dtype not in _DTYPES:
            raise self._bad(
                f"tensor {name!r} has type {entry.dtype}, which is not supported; "
                f"supported: {', '.join(_DTYPES)}"
            )
        stored = np.frombuffer(self._data, np.uint8, entry.end - entry.start, entry.start)
        # Rows need not start at a multiple of their type's size; NumPy's views do not mind.
        return DenseWeight(stored.view(_DTYPES[entry.dtype]).reshape(entry.shape))

    def _parse(self, header: bytes, base: int) -> dict[str, TensorEntry]:
        try:
            table = json.loads(header)
        except (ValueError, RecursionError) as error:
            raise self._bad("the header is not JSON: truncated or damaged") from error
        if not isinstance(table, dict):
            raise self._bad("the header is not a JSON object")
        entries = {
            name: self._entry(name, row, base)
            for name, row in table.items()
            if name != "__metadata__"
        }
        ordered = sorted(entries.items(), key=lambda item: item[1].start)
        for (name, before), (other, after) in itertools.pairwise(ordered):
            if before.end > after.start:
                raise self._bad(f"tensors {name!r} and {other!r} overlap")
        return entries

    def _entry(self, name: str, row: Any, base: int) -> TensorEntry:
        if not isinstance(row, dict):
            raise self._bad(f"tensor {name!r:.80} is described by something else than an object")
        dtype, shape, offsets = row.get("dtype"), row.get("shape"), row.get("data_offsets")
        if not isinstance(dtype, str) or len(dtype) > 16:
            raise self._bad(f"tensor {name!r:.80} has no type")
        if not _naturals(shape) or len(shape) > MAX_DIMS:
            raise self._bad(f"tensor {name!r:.80} has an impossible shape")
        if not _naturals(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
            raise self._bad(f"tensor {name!r:.80} has impossible offsets")
        start, end = base + offsets[0], base + offsets[1]
        if end > self._size:
            raise self._bad(
                f"tensor {name!r:.80} needs bytes up to {end}, but the file has {self._size}: "
                "truncated; download it again"
            )
        if dtype in _DTYPES and math.prod(shape) * np.dtype(_DTYPES[dtype]).itemsize != end - start:
            raise self._bad(
                f"tensor {name!r:.80} of shape {shape} does not fit its {end - start} bytes"
            )
        return TensorEntry(dtype, tuple(shape), start, end)

    def _bad(self, problem: str) -> CheckpointError:
        return CheckpointError(f"{self.path.name}: {problem}")


def _naturals(value: Any) -> TypeGuard[list[int]]:
    return isinstance(value, list) and all(
        type(item) is int and 0 <= item < 2**48 for item in value
    )
