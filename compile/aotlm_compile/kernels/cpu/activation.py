"""Element-wise kernels between the matrix products: norms, activations, int8 quantization.

An int8 activation is the pair
    codes   int8    [rows, groups * 8, 4]   rounded values, groups of 32 along the features
    scales  float32 [rows, groups, 2]       (step, step * sum of the group's codes)
with value = codes * step; the second number is what a weight's group minimum multiplies.
Features past the last one (when their number is no multiple of 32) hold zeros.
"""
# fmt: off

from __future__ import annotations

from functools import lru_cache
from typing import Any

from tvm.script import tirx as T

from aotlm_compile.kernels.cpu.vector import (
    absolute,
    exp,
    lanes,
    reduce_add,
    reduce_add_i32,
    reduce_max,
    round_even,
    splat,
    splat_f32,
)

GROUP = 32
PARALLEL_ROWS = 4


def groups_of(features: int) -> int:
    """How many groups of 32 hold `features` values."""
    return -(-features // GROUP)


@T.inline
def _for_rows(n, body):  # type: ignore[no-untyped-def]
    """body(m) for each row; a few rows are done by one thread sooner than the pool can be woken."""
    if n < PARALLEL_ROWS:
        for m in T.serial(n):
            body(m)
    else:
        for m in T.parallel(n):
            body(m)


def _silu_mul(gate: Any, up: Any) -> Any:
    """silu(gate) * up, float32x16."""
    return gate / (splat_f32(1) + exp(splat_f32(0) - gate)) * up


@T.inline
def _inverse_rms(x, m, features, eps, squares, out):  # type: ignore[no-untyped-def]
    """out[0] = 1 / sqrt(mean(x[m]^2) + eps)"""
    for h in T.unroll(2):
        squares[h, lanes(0)] = splat_f32(0)
    for g in T.serial(features // GROUP):
        for h in T.unroll(2):
            squares[h, lanes(0)] = squares[h, lanes(0)] + x[m, lanes(g * 32 + h * 16)] * x[m, lanes(g * 32 + h * 16)]
    for k in T.serial(features % GROUP):
        squares[0, 0] = squares[0, 0] + x[m, features // GROUP * GROUP + k] * x[m, features // GROUP * GROUP + k]
    out[0] = T.float32(1) / T.sqrt(
        reduce_add(squares[0, lanes(0)] + squares[1, lanes(0)]) * T.float32(1.0 / features) + T.float32(eps)
    )


@T.inline
def _load_group(x, m, first, left, features, v):  # type: ignore[no-untyped-def]
    """v float32 [2, 16] = x[m, first .. first + 31], zeros where fewer than 32 are left."""
    if features % GROUP == 0:
        for h in T.unroll(2):
            v[h, lanes(0)] = x[m, lanes(first + h * 16)]
    else:
        for k in T.serial(32):
            v[k // 16, k % 16] = T.float32(0)
            if k < left:
                v[k // 16, k % 16] = x[m, first + k]


@T.inline
def _quantize_group(v, q, step, codes, scales, m, g):  # type: ignore[no-untyped-def]
    """v float32 [2, 16] -> row m, group g of (codes, scales)."""
    step[0] = reduce_max(T.max(absolute(v[0, lanes(0)]), absolute(v[1, lanes(0)])))
    step[1] = T.if_then_else(step[0] > T.float32(0), T.float32(127) / step[0], T.float32(0))
    for h in T.unroll(2):
        q[h, lanes(0)] = T.cast(round_even(v[h, lanes(0)] * splat(step[1])), "int32x16")
        for j in T.vectorized(16):
            codes[m, g * 8 + h * 4 + j // 4, j % 4] = T.cast(q[h, j], "int8")
    scales[m, g, 0] = step[0] * T.float32(1.0 / 127)
    scales[m, g, 1] = step[0] * T.float32(1.0 / 127) * T.cast(
        reduce_add_i32(q[0, lanes(0)] + q[1, lanes(0)]), "float32")


@lru_cache(maxsize=None)
def rms_norm_quantize(features: int, eps: float) -> Any:
    """x float32 [n, features], weight float32 [features] -> int8 activation of RMSNorm(x).

    RMSNorm: x / sqrt(mean(x^2) + eps) * weight (Zhang and Sennrich 2019).
    """
    groups = groups_of(features)

    @T.prim_func(s_tir=True)
    def rms_norm_quantize_kernel(x_h: T.handle, w_h: T.handle, codes_h: T.handle, scales_h: T.handle):
        T.func_attr({"tirx.is_scheduled": True, "tirx.noalias": True})
        n = T.int64()
        x = T.match_buffer(x_h, (n, features), "float32")
        weight = T.match_buffer(w_h, (features,), "float32")
        codes = T.match_buffer(codes_h, (n, groups * 8, 4), "int8")
        scales = T.match_buffer(scales_h, (n, groups, 2), "float32")

        @T.inline
        def row(m):  # type: ignore[no-untyped-def]
            with T.sblock("row"):
                T.reads()
                T.writes()
                squares = T.sblock_alloc_buffer((2, 16), "float32")
                inverse = T.sblock_alloc_buffer((1,), "float32")
                v = T.sblock_alloc_buffer((2, 16), "float32")
                q = T.sblock_alloc_buffer((2, 16), "int32")
                step = T.sblock_alloc_buffer((2,), "float32")
                _inverse_rms(x, m, features, eps, squares, inverse)
                for g in T.serial(groups):
                    if features % GROUP == 0:
                        for h in T.unroll(2):
                            v[h, lanes(0)] = x[m, lanes(g * 32 + h * 16)] * weight[lanes(g * 32 + h * 16)] * splat(inverse[0])
                    else:
                        for k in T.serial(32):
                            v[k // 16, k % 16] = T.float32(0)
                            if g * 32 + k < features:
                                v[k // 16, k % 16] = x[m, g * 32 + k] * weight[g * 32 + k] * inverse[0]
                    _quantize_group(v, q, step, codes, scales, m, g)

        _for_rows(n, row)

    return rms_norm_quantize_kernel.without_attr("global_symbol")


@lru_cache(maxsize=None)
def rms_norm(features: int, eps: float) -> Any:
    """x float32 [n, features], weight float32 [features] -> float32 [n, features]."""

    @T.prim_func(s_tir=True)
    def rms_norm_kernel(x_h: T.handle, w_h: T.handle, y_h: T.handle):
        T.func_attr({"tirx.is_scheduled": True, "tirx.noalias": True})
        n = T.int64()
        x = T.match_buffer(x_h, (n, features), "float32")
        weight = T.match_buffer(w_h, (features,), "float32")
        y = T.match_buffer(y_h, (n, features), "float32")

        @T.inline
        def row(m):  # type: ignore[no-untyped-def]
            with T.sblock("row"):
                T.reads()
                T.writes()
                squares = T.sblock_alloc_buffer((2, 16), "float32")
                inverse = T.sblock_alloc_buffer((1,), "float32")
                _inverse_rms(x, m, features, eps, squares, inverse)
                for k in T.serial(features):
                    y[m, k] = x[m, k] * weight[k] * inverse[0]

        _for_rows(n, row)

    return rms_norm_kernel.without_attr("global_symbol")


@lru_cache(maxsize=None)
def quantize(features: int) -> Any:
    """x float32 [n, features] -> int8 activation."""
    groups = groups_of(features)

    @T.prim_func(s_tir=True)
    def quantize_kernel(x_h: T.handle, codes_h: T.handle, scales_h: T.handle):
        T.func_attr({"tirx.is_scheduled": True, "tirx.noalias": True})
        n = T.int64()
        x = T.match_buffer(x_h, (n, features), "float32")
        codes = T.match_buffer(codes_h, (n, groups * 8, 4), "int8")
        scales = T.match_buffer(scales_h, (n, groups, 2), "float32")

        @T.inline
        def row(m):  # type: ignore[no-untyped-def]
            for g in T.serial(groups):
                with T.sblock("group"):
                    T.reads()
                    T.writes()
                    v = T.sblock_alloc_buffer((2, 16), "float32")
                    q = T.sblock_alloc_buffer((2, 16), "int32")
                    step = T.sblock_alloc_buffer((2,), "float32")
                    _load_group(x, m, g * 32, features - g * 32, features, v)
                    _quantize_group(v, q, step, codes, scales, m, g)

        _for_rows(n, row)

    return quantize_kernel.without_attr("global_symbol")


@lru_cache(maxsize=None)
def silu_mul_quantize(features: int) -> Any:
    """x float32 [n, 2 * features] = gate, up -> int8 activation of silu(gate) * up."""
    groups = groups_of(features)

    @T.prim_func(s_tir=True)
    def silu_mul_quantize_kernel(x_h: T.handle, codes_h: T.handle, scales_h: T.handle):
        T.func_attr({"tirx.is_scheduled": True, "tirx.noalias": True})
        n = T.int64()
        x = T.match_buffer(x_h, (n, 2 * features), "float32")
        codes = T.match_buffer(codes_h, (n, groups * 8, 4), "int8")
        scales = T.match_buffer(scales_h, (n, groups, 2), "float32")

        @T.inline
        def row(m):  # type: ignore[no-untyped-def]
            for g in T.serial(groups):
                with T.sblock("group"):
                    T.reads()
                    T.writes()
                    gate = T.sblock_alloc_buffer((2, 16), "float32")
                    v = T.sblock_alloc_buffer((2, 16), "float32")
                    q = T.sblock_alloc_buffer((2, 16), "int32")
                    step = T.sblock_alloc_buffer((2,), "float32")
                    _load_group(x, m, g * 32, features - g * 32, features, gate)
                    _load_group(x, m, features + g * 32, features - g * 32, features, v)
                    for h in T.unroll(2):
                        v[h, lanes(0)] = _silu_mul(gate[h, lanes(0)], v[h, lanes(0)])
                    _quantize_group(v, q, step, codes, scales, m, g)

        _for_rows(n, row)

    return silu_mul_quantize_kernel.without_attr("global_symbol")


@lru_cache(maxsize=None)
def silu_mul(features: int) -> Any:
    """x float32 [n, 2 * features] = gate, up -> float32 [n, features] = silu(gate) * up."""

    @T.prim_func(s_tir=True)
    def silu_mul_kernel(x_h: T.handle, y_h: T.handle):
        T.func_attr({"tirx.is_scheduled": True, "tirx.noalias": True})
        n = T.int64()
        x = T.match_buffer(x_h, (n, 2 * features), "float32")
        y = T.match_buffer(y_h, (n, features), "float32")

        @T.inline
        def row(m):  # type: ignore[no-untyped-def]
            for b in T.serial(features // 16):
                with T.sblock("vector"):
                    T.reads()
                    T.writes()
                    y[m, lanes(b * 16)] = _silu_mul(x[m, lanes(b * 16)], x[m, lanes(features + b * 16)])
            for k in T.serial(features % 16):
                with T.sblock("rest"):
                    T.reads()
                    T.writes()
                    d: T.let[T.int32] = features // 16 * 16 + k
                    y[m, d] = x[m, d] / (T.float32(1) + T.exp(T.float32(0) - x[m, d])) * x[m, features + d]

        _for_rows(n, row)

    return silu_mul_kernel.without_attr("global_symbol")
