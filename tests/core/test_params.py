from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from aotlm.artifact import WeightEntry
from aotlm.errors import ArtifactCorrupt
from aotlm.runtime.params import load_params, map_weights


def write(path: Path, arrays: list[NDArray[Any]]) -> list[WeightEntry]:
    """weights.bin as the compiler lays it out."""
    entries, data = [], b""
    for index, array in enumerate(arrays):
        data += b"\0" * (-len(data) % 64)
        entries.append(
            WeightEntry(f"w{index}", array.shape, str(array.dtype), len(data), array.nbytes)
        )
        data += array.tobytes()
    path.write_bytes(data)
    return entries


@pytest.fixture
def arrays() -> list[NDArray[Any]]:
    rng = np.random.default_rng(0)
    return [
        rng.integers(0, 255, (7, 9), dtype=np.uint8),
        rng.normal(size=(3, 4, 5)).astype(np.float16),
        rng.normal(size=11).astype(np.float32),
    ]


def test_views_are_the_arrays_in_order(tmp_path: Path, arrays: list[NDArray[Any]]) -> None:
    path = tmp_path / "weights.bin"
    for view, array in zip(map_weights(path, write(path, arrays)), arrays, strict=True):
        assert view.dtype == array.dtype
        np.testing.assert_array_equal(view, array)


def test_tvm_sees_the_mapping_itself(tmp_path: Path, arrays: list[NDArray[Any]]) -> None:
    path = tmp_path / "weights.bin"
    tensors = load_params(path, write(path, arrays))
    for tensor, array in zip(tensors, arrays, strict=True):
        view: NDArray[Any] = np.from_dlpack(tensor)
        np.testing.assert_array_equal(view, array)
        address = f"{view.ctypes.data & ~4095:x}-"
        mapped = [
            line
            for line in Path("/proc/self/maps").read_text().splitlines()
            if line.startswith(address) and str(path) in line
        ]
        assert mapped, "the tensor is a copy"


def test_the_file_never_changes(tmp_path: Path, arrays: list[NDArray[Any]]) -> None:
    path = tmp_path / "weights.bin"
    entries = write(path, arrays)
    before = path.read_bytes()
    map_weights(path, entries)[0][:] = 0
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"dtype": "int3"}, "unknown dtype 'int3'"),
        ({"shape": (8, 9)}, "takes 72 bytes, the manifest says 63"),
        ({"shape": (-7, -9)}, "the manifest says 63"),
        ({"offset": 8}, "begins at 8, not a multiple of 64"),
        ({"offset": 6400}, r"ends at 6463, the file at 63"),
    ],
)
def test_an_entry_that_cannot_be_right(
    tmp_path: Path, arrays: list[NDArray[Any]], change: dict[str, Any], message: str
) -> None:
    path = tmp_path / "weights.bin"
    (entry,) = write(path, arrays[:1])
    given = {"name": "w0", "shape": entry.shape, "dtype": "uint8", "offset": 0, "nbytes": 63}
    with pytest.raises(ArtifactCorrupt, match=message):
        map_weights(path, [WeightEntry(**{**given, **change})])


@pytest.mark.parametrize("make", [lambda path: None, lambda path: path.write_bytes(b"")])
def test_a_file_that_cannot_be_mapped(tmp_path: Path, make: Any) -> None:
    path = tmp_path / "weights.bin"
    make(path)
    with pytest.raises(ArtifactCorrupt, match="cannot be mapped"):
        map_weights(path, [])
