from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

from aotlm.errors import CompileError
from aotlm_compile.weights_file import WeightsFile


def test_every_weight_is_found_at_its_aligned_place(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    arrays: dict[str, npt.NDArray[Any]] = {
        "bytes": rng.integers(0, 256, (3, 7), dtype=np.uint8),
        "turned": rng.normal(size=(5, 9)).astype(np.float32).T,
        "halves": rng.normal(size=(1,)).astype(np.float16),
        "whole lines": np.zeros((4, 16), dtype=np.float32),
        "last": rng.normal(size=(2, 3, 4)).astype(np.float32),
    }
    path = tmp_path / "weights.bin"
    with WeightsFile(path) as file:
        for name, array in arrays.items():
            file.add(name, array)
    content = path.read_bytes()
    assert file.size == len(content)
    assert file.sha256 == hashlib.sha256(content).hexdigest()
    assert [place.name for place in file.places] == list(arrays)
    end = 0
    for place in file.places:
        assert place.offset % 64 == 0
        assert place.offset - end < 64
        end = place.offset + place.nbytes
        stored = np.frombuffer(content[place.offset : end], place.dtype).reshape(place.shape)
        np.testing.assert_array_equal(stored, arrays[place.name])
    assert end == len(content)


def test_types_the_runtime_does_not_take_and_doubles_are_refused(tmp_path: Path) -> None:
    with WeightsFile(tmp_path / "weights.bin") as file:
        with pytest.raises(CompileError, match="'a' has type bfloat16"):
            file.add("a", np.zeros(4, dtype=ml_dtypes.bfloat16))
        file.add("b", np.zeros(4, dtype=np.uint8))
        with pytest.raises(CompileError, match="'b' was packed twice"):
            file.add("b", np.zeros(4, dtype=np.uint8))
