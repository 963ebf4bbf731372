"""weights.bin: all weights one after another, written as they come."""

from __future__ import annotations

import hashlib
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from aotlm.errors import CompileError
from aotlm.manifest import ITEM_BYTES, WEIGHT_ALIGNMENT, WeightEntry


class WeightsFile:
    """A weights.bin being written. `places`, `size` and `sha256` are complete at the end."""

    def __init__(self, path: Path) -> None:
        self.places: list[WeightEntry] = []
        self.size = 0
        self._names: set[str] = set()
        self._digest = hashlib.sha256()
        self._file = path.open("wb")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._file.close()

    @property
    def sha256(self) -> str:
        return self._digest.hexdigest()

    def add(self, name: str, array: npt.NDArray[Any]) -> None:
        """Append one weight. Raises CompileError for a type the runtime does not take."""
        if array.dtype.name not in ITEM_BYTES:
            raise CompileError(
                f"weight {name!r} has type {array.dtype}; possible: {', '.join(ITEM_BYTES)}"
            )
        if name in self._names:
            raise CompileError(f"weight {name!r} was packed twice")
        self._names.add(name)
        self._write(bytes(-self.size % WEIGHT_ALIGNMENT))
        data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        place = WeightEntry(name, tuple(array.shape), array.dtype.name, self.size, data.nbytes)
        self._write(data.data)
        self.places.append(place)

    def _write(self, data: bytes | memoryview) -> None:
        self._file.write(data)
        self._digest.update(data)
        self.size += len(data)
