"""The weights of an artifact as TVM tensors, memory-mapped: nothing is read before it is used.

The mapping is private and copy-on-write because DLPack wants writable memory; nobody writes,
so the pages stay shared with the file and with other processes that serve the same artifact.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from aotlm.errors import ArtifactCorrupt
from aotlm.runtime.device import load_tvm

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from aotlm.artifact import WeightEntry

_ALIGNMENT = 64  # bytes; what TVM's kernels assume of every tensor
_DTYPES = {"uint8": np.uint8, "int8": np.int8, "float16": np.float16, "float32": np.float32}


def map_weights(path: Path, entries: Sequence[WeightEntry]) -> list[NDArray[Any]]:
    """Views into the file, one per entry in order, with the entry's shape and dtype.

    Raises ArtifactCorrupt when an entry is misaligned, contradicts itself or ends behind the
    end of the file, or when the file cannot be mapped.
    """
    try:
        data = np.memmap(path, dtype=np.uint8, mode="c")
    except (OSError, ValueError) as error:
        raise ArtifactCorrupt(
            f"{path} cannot be mapped ({error}): compile the model again"
        ) from None
    return [_view(path, data, entry) for entry in entries]


def load_params(path: Path, entries: Sequence[WeightEntry]) -> Any:
    """The weights as the one argument the library's functions take: a TVM array of tensors.

    Zero-copy. Raises ArtifactCorrupt as `map_weights`.
    """
    ffi = load_tvm().ffi
    return ffi.convert([ffi.from_dlpack(array) for array in map_weights(path, entries)])


def _view(path: Path, data: NDArray[np.uint8], entry: WeightEntry) -> NDArray[Any]:
    advice = "compile the model again"
    where = f"{path}: weight {entry.name!r}"
    if entry.dtype not in _DTYPES:
        raise ArtifactCorrupt(f"{where} has the unknown dtype {entry.dtype!r}: {advice}")
    dtype = np.dtype(_DTYPES[entry.dtype])
    expected = dtype.itemsize
    for extent in entry.shape:
        expected *= extent
    if expected != entry.nbytes or min(entry.shape, default=1) < 1:
        raise ArtifactCorrupt(
            f"{where} of shape {tuple(entry.shape)} takes {expected} bytes, "
            f"the manifest says {entry.nbytes}: {advice}"
        )
    if entry.offset % _ALIGNMENT or entry.offset < 0:
        raise ArtifactCorrupt(f"{where} begins at {entry.offset}, not a multiple of 64: {advice}")
    end = entry.offset + entry.nbytes
    if end > data.size:
        raise ArtifactCorrupt(f"{where} ends at {end}, the file at {data.size}: {advice}")
    # As plain arrays: a memmap subclass per tensor would only slow down every access.
    return np.asarray(data[entry.offset : end]).view(dtype).reshape(entry.shape)
