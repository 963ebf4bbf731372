"""The integer dot product of each CPU level.

`dot(acc, weights, activation, bits)` adds to each of 16 int32 lanes the four products
weights[4 * lane + j] * activation[j], j = 0..3, exactly: every level gives the same integers. `bits` says how large the
weights can be; activations lie in -127..127.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm.script import tirx as T

Dot = Callable[[Any, Any, Any, int], Any]


def dot_vnni512(acc: Any, weights: Any, activation: Any, bits: int) -> Any:
    """acc int32x16, weights uint8x64, activation int32 holding four int8."""
    return T.call_llvm_pure_intrin(
        "int32x16",
        "llvm.x86.avx512.vpdpbusd.512",
        acc,
        weights,
        T.reinterpret("int8x64", T.broadcast(activation, 16)),
    )


def dot_avx2(acc: Any, weights: Any, activation: Any, bits: int) -> Any:
    """The same, 32 bytes at a time.

    vpmaddubsw adds pairs of products in int16 and saturates: 15 * 127 * 2 fits, 255 * 127 * 2
    does not, so an 8-bit weight is taken as its low 7 bits and 128 times its top bit.
    """
    codes = T.reinterpret("int8x32", T.broadcast(activation, 8))

    def pairs(part: Any, times: int) -> Any:
        products = T.call_llvm_pure_intrin("int16x16", "llvm.x86.avx2.pmadd.ub.sw", part, codes)
        factor = T.broadcast(T.int16(times), 16)
        return T.call_llvm_pure_intrin("int32x8", "llvm.x86.avx2.pmadd.wd", products, factor)

    def half(take: Any) -> Any:
        part = take("uint8x32", weights)
        if bits == 4:
            return pairs(part, 1)
        top = T.reinterpret(
            "uint8x32", T.reinterpret("uint16x16", part) >> T.broadcast(T.uint16(7), 16)
        )
        return pairs(part & T.broadcast(T.uint8(127), 32), 1) + pairs(
            top & T.broadcast(T.uint8(1), 32), 128
        )

    return acc + T.vectorcombine("int32x16", half(T.vectorlow), half(T.vectorhigh))


def dot_plain(acc: Any, weights: Any, activation: Any, bits: int) -> Any:
    """The same in ordinary integer arithmetic, for any machine."""
    words = T.reinterpret("int32x16", weights)
    for j in range(4):
        w = (words >> T.broadcast(T.int32(8 * j), 16)) & T.broadcast(T.int32(255), 16)
        # Shift left, then arithmetic shift right: the sign of the j-th int8 is kept.
        a = (activation << T.int32(24 - 8 * j)) >> T.int32(24)
        acc = acc + w * T.broadcast(a, 16)
    return acc


DOTS: dict[str, Dot] = {"vnni512": dot_vnni512, "avx2": dot_avx2, "plain": dot_plain}
