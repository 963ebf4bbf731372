"""The integer dot product of each CPU level.

`dot(acc, weights, activation)` adds to each of 16 int32 lanes the four products
weights[4 * lane + j] * activation[j], j = 0..3, exactly: every level gives the same integers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm.script import tirx as T

Dot = Callable[[Any, Any, Any], Any]


def dot_vnni512(acc: Any, weights: Any, activation: Any) -> Any:
    """acc int32x16, weights uint8x64, activation int32 holding four int8."""
    return T.call_llvm_pure_intrin(
        "int32x16",
        "llvm.x86.avx512.vpdpbusd.512",
        acc,
        weights,
        T.reinterpret("int8x64", T.broadcast(activation, 16)),
    )


def dot_plain(acc: Any, weights: Any, activation: Any) -> Any:
    """The same in ordinary integer arithmetic, for any machine."""
    words = T.reinterpret("int32x16", weights)
    for j in range(4):
        w = (words >> T.broadcast(T.int32(8 * j), 16)) & T.broadcast(T.int32(255), 16)
        # Shift left, then arithmetic shift right: the sign of the j-th int8 is kept.
        a = (activation << T.int32(24 - 8 * j)) >> T.int32(24)
        acc = acc + w * T.broadcast(a, 16)
    return acc


DOTS: dict[str, Dot] = {"vnni512": dot_vnni512, "plain": dot_plain}
