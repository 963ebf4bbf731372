"""Compiling one kernel for a CPU level and calling it with NumPy arrays.

Every array travels in memory of its own with guard bytes on both sides: a kernel that writes
out of bounds fails the test instead of corrupting the process.
"""

from __future__ import annotations

import os
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from aotlm.cpu_features import cpu_features
from aotlm_compile.targets import CpuTarget, available_targets, parse_target

# TVM's default is half the cores; kernels are to run on several threads here.
os.environ.setdefault("TVM_NUM_THREADS", str(os.cpu_count() or 1))

Array = npt.NDArray[Any]
_ALIGNMENT = 64  # bytes; what TVM assumes of every tensor
_GUARD = 4096
_PATTERN = 0xA5


def targets_here() -> list[CpuTarget]:
    """Every level whose instructions this machine has, the best first."""
    targets = [parse_target(name) for name in available_targets() if name != "cpu"]
    return [t for t in targets if cpu_features().issuperset(t.level.features)]


TARGETS = targets_here()


def run(target: CpuTarget, kernel: Any, *arguments: Array | float) -> None:
    """Call `kernel` (a PrimFunc) compiled for `target`; arrays it writes are updated in place.

    Raises AssertionError when the kernel wrote outside of an array.
    """
    buffers = [_Buffer(a) if isinstance(a, np.ndarray) else None for a in arguments]
    function = _compiled(target.name, kernel)
    function(*(b.tensor if b else a for b, a in zip(buffers, arguments, strict=True)))
    for number, buffer in enumerate(buffers):
        if buffer is not None:
            assert buffer.intact(), f"argument {number} was written out of bounds"
            buffer.fetch()


def unwritten(*shape: int, dtype: str = "float32") -> Array:
    """An array for a result, of values that no kernel computes by chance."""
    array = np.empty(shape, dtype)
    array.view(np.uint8)[...] = _PATTERN
    return array


class _Buffer:
    """A copy of an array between two guards, and the TVM tensor over it."""

    def __init__(self, array: Array) -> None:
        import tvm_ffi

        self.array = array
        raw = np.full(array.nbytes + 2 * _GUARD + _ALIGNMENT, _PATTERN, np.uint8)
        start = -raw.ctypes.data % _ALIGNMENT
        self._memory = raw[start : start + array.nbytes + 2 * _GUARD]
        self._copy = self._memory[_GUARD : _GUARD + array.nbytes].view(array.dtype)
        self._copy = self._copy.reshape(array.shape)
        self._copy[...] = array
        self.tensor: Any = tvm_ffi.from_dlpack(self._copy)

    def intact(self) -> bool:
        end = _GUARD + self.array.nbytes
        return bool((self._memory[:_GUARD] == _PATTERN).all()) and bool(
            (self._memory[end:] == _PATTERN).all()
        )

    def fetch(self) -> None:
        self.array[...] = self._copy


@cache
def _compiled(target_name: str, kernel: Any) -> Any:
    import tvm

    target = parse_target(target_name).tvm_target()
    module = tvm.IRModule({"main": kernel.with_attr("global_symbol", "main")})
    with target:
        return tvm.compile(module, target=target)["main"]
