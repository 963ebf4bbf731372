"""The GGUF container: header, typed metadata and tensor table, memory-mapped.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md (versions 2 and 3).
Knows nothing about models. Every count is checked against the bytes that are left before
anything is allocated for it, so a damaged or hostile file costs an error and nothing else.
"""

from __future__ import annotations

import itertools
import math
import mmap
import struct
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from aotlm.errors import CheckpointError

from .gguf_blocks import TYPES, BlockType

MAGIC = b"GGUF"
MAX_KEYS = 1 << 16
MAX_TENSORS = 1 << 16
MAX_STRINGS = 1 << 20  # in all arrays together; the largest vocabularies have some 300k + merges
MAX_STRING_BYTES = 1 << 22
MAX_NAME_BYTES = 256
MAX_DIMS = 4
MAX_ALIGNMENT = 1 << 20

Array = npt.NDArray[np.generic]
Value = int | float | bool | str | list[str] | Array

_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")
_STRING, _ARRAY = 8, 9
_SCALARS: dict[int, struct.Struct] = {
    0: struct.Struct("<B"),
    1: struct.Struct("<b"),
    2: struct.Struct("<H"),
    3: struct.Struct("<h"),
    4: _U32,
    5: struct.Struct("<i"),
    6: struct.Struct("<f"),
    7: struct.Struct("<?"),
    10: _U64,
    11: struct.Struct("<q"),
    12: struct.Struct("<d"),
}
_DTYPES = {
    number: np.dtype("u1" if number == 7 else packer.format) for number, packer in _SCALARS.items()
}


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One row of the tensor table. `shape` is in NumPy order (rows first)."""

    name: str
    shape: tuple[int, ...]
    type: BlockType
    offset: int  # bytes from the start of the file
    nbytes: int


class GgufFile:
    """An opened GGUF file: `metadata`, `tensors`, and `bytes_of` a tensor."""

    def __init__(self, path: Path) -> None:
        """Map and parse `path`. Raises CheckpointError."""
        self.path = path
        self._data = _map(path)
        reader = _Reader(self._data, path.name)
        tensor_count, key_count = reader.header()
        self.version = reader.version
        self.metadata = reader.metadata(key_count)
        self.tensors = reader.tensors(tensor_count, self._alignment())

    def bytes_of(self, tensor: TensorInfo) -> npt.NDArray[np.uint8]:
        """The tensor's stored bytes: uint8 [nbytes], a read-only view of the mapped file."""
        return np.frombuffer(self._data, np.uint8, tensor.nbytes, tensor.offset)

    def _alignment(self) -> int:
        value = self.metadata.get("general.alignment", 32)
        if isinstance(value, bool) or not isinstance(value, int):
            raise CheckpointError(f"{self.path.name}: general.alignment is not an integer")
        if not 1 <= value <= MAX_ALIGNMENT or value & (value - 1):
            raise CheckpointError(f"{self.path.name}: general.alignment {value} is not usable")
        return value


def _map(path: Path) -> mmap.mmap:
    try:
        with path.open("rb") as file:
            start = file.read(4)
            if start != MAGIC:
                found = "an empty file" if not start else f"it starts with {start!r}"
                raise CheckpointError(f"{path} is not a GGUF file ({found})")
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error.strerror or error}") from error


class _Reader:
    """A position in the mapped file; every read is checked against its end."""

    def __init__(self, data: mmap.mmap, name: str) -> None:
        self._data = data
        self._size = len(data)
        self._at = len(MAGIC)
        self._name = name
        self._strings_left = MAX_STRINGS
        self.version = 0

    def header(self) -> tuple[int, int]:
        """(number of tensors, number of metadata keys)."""
        self.version = self._u32("version")
        if self.version not in (2, 3):
            swapped = self.version & 0xFFFF == 0 and self.version != 0
            what = "big-endian byte order" if swapped else f"version {self.version}"
            raise self._bad(f"GGUF {what} is not supported; supported: versions 2 and 3")
        tensors, keys = self._u64("tensor count"), self._u64("metadata count")
        self._check_count(tensors, 24, MAX_TENSORS, "tensors")
        self._check_count(keys, 13, MAX_KEYS, "metadata keys")
        return tensors, keys

    def metadata(self, count: int) -> dict[str, Value]:
        result: dict[str, Value] = {}
        for index in range(count):
            key = self._string(f"metadata key {index + 1} of {count}", MAX_NAME_BYTES)
            if key in result:
                raise self._bad(f"metadata key {key!r} appears twice")
            result[key] = self._value(key)
        return result

    def tensors(self, count: int, alignment: int) -> dict[str, TensorInfo]:
        rows: list[tuple[str, tuple[int, ...], BlockType, int]] = []
        for index in range(count):
            rows.append(self._tensor_row(f"tensor {index + 1} of {count}"))
        start = -(-self._at // alignment) * alignment
        result: dict[str, TensorInfo] = {}
        for name, shape, kind, offset in rows:
            if name in result:
                raise self._bad(f"tensor {name!r} appears twice")
            if offset % alignment:
                raise self._bad(
                    f"tensor {name!r} starts at {offset}, not a multiple of {alignment}"
                )
            nbytes = math.prod(shape) // kind.values * kind.nbytes
            if start + offset + nbytes > self._size:
                raise self._bad(
                    f"tensor {name!r} needs bytes up to {start + offset + nbytes}, but the file "
                    f"has {self._size}: truncated or damaged; download it again"
                )
            result[name] = TensorInfo(name, shape, kind, start + offset, nbytes)
        self._check_overlap(result)
        return result

    def _tensor_row(self, what: str) -> tuple[str, tuple[int, ...], BlockType, int]:
        name = self._string(f"name of {what}", MAX_NAME_BYTES)
        dims = self._u32(f"dimensions of {name!r}")
        if not 1 <= dims <= MAX_DIMS:
            raise self._bad(f"tensor {name!r} has {dims} dimensions; 1 to {MAX_DIMS} are possible")
        shape = tuple(self._u64(f"shape of {name!r}") for _ in range(dims))[::-1]
        if not all(0 < size < 2**31 for size in shape):
            raise self._bad(f"tensor {name!r} has the impossible shape {list(shape)}")
        number = self._u32(f"type of {name!r}")
        kind = TYPES.get(number)
        if kind is None:
            raise self._bad(f"tensor {name!r} has the unknown type number {number}")
        if shape[-1] % kind.values:
            raise self._bad(
                f"tensor {name!r} of type {kind.name} has rows of {shape[-1]} values, "
                f"not a multiple of {kind.values}"
            )
        return name, shape, kind, self._u64(f"offset of {name!r}")

    def _check_overlap(self, tensors: dict[str, TensorInfo]) -> None:
        ordered = sorted(tensors.values(), key=lambda tensor: tensor.offset)
        for before, after in itertools.pairwise(ordered):
            if before.offset + before.nbytes > after.offset:
                raise self._bad(f"tensors {before.name!r} and {after.name!r} overlap")

    def _value(self, key: str) -> Value:
        number = self._u32(f"type of {key!r}")
        if number == _STRING:
            return self._string(f"value of {key!r}", MAX_STRING_BYTES)
        if number == _ARRAY:
            return self._array(key)
        packer = _SCALARS.get(number)
        if packer is None:
            raise self._bad(f"metadata key {key!r} has the unknown type number {number}")
        at = self._advance(packer.size, f"value of {key!r}")
        value: int | float | bool = packer.unpack_from(self._data, at)[0]
        return value

    def _array(self, key: str) -> list[str] | Array:
        number = self._u32(f"element type of {key!r}")
        count = self._u64(f"length of {key!r}")
        if number == _STRING:
            self._check_count(count, 8, self._strings_left, f"strings in {key!r}")
            self._strings_left -= count
            return self._strings(key, count)
        dtype = _DTYPES.get(number)
        if dtype is None:
            what = "arrays of arrays are" if number == _ARRAY else f"element type {number} is"
            raise self._bad(f"metadata key {key!r}: {what} not supported")
        self._check_count(count, dtype.itemsize, self._size, f"values in {key!r}")
        at = self._advance(count * dtype.itemsize, f"values of {key!r}")
        return np.frombuffer(self._data, dtype, count, at)

    def _strings(self, key: str, count: int) -> list[str]:
        # The vocabulary: some 100k strings, so the loop holds nothing but locals.
        data, at, size, unpack = self._data, self._at, self._size, _U64.unpack_from
        result: list[str] = []
        try:
            for _ in range(count):
                start = at + 8
                at = start + unpack(data, at)[0]
                if at > size or at - start > MAX_STRING_BYTES:
                    raise self._truncated(f"strings of {key!r}")
                result.append(data[start:at].decode())
        except struct.error:
            raise self._truncated(f"strings of {key!r}") from None
        except UnicodeDecodeError:
            raise self._bad(f"string {len(result)} of {key!r} is not UTF-8") from None
        self._at = at
        return result

    def _string(self, what: str, limit: int) -> str:
        length = self._u64(what)
        if length > self._size - self._at:
            raise self._truncated(what)
        if length > limit:
            raise self._bad(f"{what} has {length} bytes; at most {limit} are possible")
        at = self._advance(length, what)
        try:
            return self._data[at : at + length].decode()
        except UnicodeDecodeError:
            raise self._bad(f"{what} is not UTF-8") from None

    def _u32(self, what: str) -> int:
        value: int = _U32.unpack_from(self._data, self._advance(4, what))[0]
        return value

    def _u64(self, what: str) -> int:
        value: int = _U64.unpack_from(self._data, self._advance(8, what))[0]
        return value

    def _advance(self, size: int, what: str) -> int:
        at = self._at
        if size > self._size - at:
            raise self._truncated(what)
        self._at = at + size
        return at

    def _check_count(self, count: int, smallest: int, limit: int, what: str) -> None:
        if count > (self._size - self._at) // smallest:
            raise self._truncated(f"{count} {what}")
        if count > limit:
            raise self._bad(f"{count} {what}: at most {limit} are possible")

    def _truncated(self, what: str) -> CheckpointError:
        return self._bad(
            f"the file ends before its {what} (size {self._size} bytes): truncated or damaged; "
            "download it again"
        )

    def _bad(self, problem: str) -> CheckpointError:
        return CheckpointError(f"{self._name}: {problem}")
