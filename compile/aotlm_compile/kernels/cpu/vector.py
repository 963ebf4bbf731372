"""Expressions over 16-lane float32 and int32 vectors, used inside TIR scripts."""
# Callers are TIR scripts: the values are TIR expressions, which carry no static types.

from __future__ import annotations

import math
from typing import Any

from tvm.script import tirx as T

LANES = 16
LOG2E = math.log2(math.e)
# Stands for minus infinity: far below any score, and exp() of differences stays finite.
MASKED = -5.0e4


def lanes(start: Any) -> Any:
    """The index of 16 neighbouring elements."""
    return T.ramp(start, 1, LANES)


def splat(value: Any) -> Any:
    """A scalar in all 16 lanes."""
    return T.broadcast(value, LANES)


def splat_f32(value: float) -> Any:
    return T.broadcast(T.float32(value), LANES)


def reduce_add(x: Any) -> Any:
    """float32x16 -> float32, pairwise (not in lane order)."""
    return T.call_llvm_pure_intrin("float32", "llvm.vector.reduce.fadd", T.float32(0), x)


def reduce_add_i32(x: Any) -> Any:
    return T.call_llvm_pure_intrin("int32", "llvm.vector.reduce.add", x)


def reduce_max(x: Any) -> Any:
    return T.call_llvm_pure_intrin("float32", "llvm.vector.reduce.fmax", x)


def largest_magnitude(a: Any, b: Any) -> Any:
    """The largest |value| of two float32x16; NaN when one of them is.

    Compared as integers: the order is the same, and the bits of NaN exceed those of infinity.
    """
    mask = T.broadcast(T.int32(0x7FFFFFFF), LANES)
    bits = T.max(T.reinterpret("int32x16", a) & mask, T.reinterpret("int32x16", b) & mask)
    return T.reinterpret(
        "float32", T.call_llvm_pure_intrin("int32", "llvm.vector.reduce.smax", bits)
    )


def round_even(x: Any) -> Any:
    """Round to nearest, ties to even."""
    return T.call_llvm_pure_intrin("float32x16", "llvm.nearbyint", x)


def fma(a: Any, b: Any, c: Any) -> Any:
    """a * b + c with one rounding where the level has it, else two."""
    return T.call_llvm_pure_intrin("float32x16", "llvm.fmuladd", a, b, c)


def exp(x: Any) -> Any:
    """exp(x) for x <= 89, flushed to about 1e-38 below -87; relative error under 3e-7.

    Infinity above 88.03. 2**f on [-0.5, 0.5] by the degree-6 Taylor polynomial of exp(f ln 2),
    and the exponent written into the float's bits.
    """
    scaled = T.max(x, splat_f32(-87.0)) * splat_f32(LOG2E)
    whole = round_even(scaled)
    frac = scaled - whole
    poly = splat_f32(_EXP2[0])
    for coefficient in _EXP2[1:]:
        poly = fma(poly, frac, splat_f32(coefficient))
    exponent = (T.cast(whole, "int32x16") + T.broadcast(T.int32(127), LANES)) << T.broadcast(
        T.int32(23), LANES
    )
    return poly * T.reinterpret("float32x16", exponent)


_EXP2 = tuple(math.log(2.0) ** k / math.factorial(k) for k in (6, 5, 4, 3, 2, 1, 0))
