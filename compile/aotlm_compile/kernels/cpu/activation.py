"""Element-wise kernels between the matrix products: norms, activations, int8 quantization.

An int8 activation is the pair
    codes   int8    [rows, groups * 8, 4]             rounded values, groups of 32 features
    scales  float32 [rows, groups + outliers, 2]      (step, step * sum of the group's codes) of
                                                      each group, then (index, value) of outliers
with value = codes * step; the second number of a group is what a weight's minimum multiplies.
Features past the last one (when their number is no multiple of 32) hold zeros.

A row's largest few features are kept out of the groups (their codes are 0) and multiplied in
float32: in a language model a handful of features is far larger than the rest and would cost
their group-mates most of the eight bits (Dettmers et al. 2022, LLM.int8()). They are chosen row
by row, so a result never depends on what shares the batch.
"""
# fmt: off

from __future__ import annotations

from functools import cache
from typing import Any

from tvm.script import tirx as T

from aotlm_compile.kernels.cpu.loops import for_rows
from aotlm_compile.kernels.cpu.vector import (
    exp,
    lanes,
    largest_magnitude,
    reduce_add,
    reduce_add_i32,
    reduce_max,
    round_even,
    splat,
    splat_f32,
)

GROUP = 32


def groups_of(features: int) -> int:
    """How many groups of 32 hold `features` values."""
    return -(-features // GROUP)


def outliers_of(features: int) -> int:
    """How many features of a row are kept in float32.

    Measured on SmolLM2 (docs/performance.md): 4 of 576 and 8 of 1536 bring the divergence from
    float activations from 0.0047 to 0.0009, at a tenth of the matrix product's time.
    """
    return 0 if features <= GROUP else 4 if features <= 1024 else 8


def _silu_mul(gate: Any, up: Any) -> Any:
    """silu(gate) * up, float32x16."""
    # exp(89) is infinity and the result 0; further up its exponent would wrap around.
    return gate / (splat_f32(1) + exp(T.min(splat_f32(0) - gate, splat_f32(89)))) * up


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
def _group_top(row, g, top):  # type: ignore[no-untyped-def]
    top[g] = largest_magnitude(row[lanes(g * 32)], row[lanes(g * 32 + 16)])


@T.inline
def _pull_outlier(row, top, groups, features, scales, m, e):  # type: ignore[no-untyped-def]
    """Moves the largest feature of `row` to scales[m, groups + e] and leaves 0 behind."""
    with T.sblock("outlier"):
        T.reads()
        T.writes()
        largest = T.sblock_alloc_buffer((16,), "float32")
        where = T.sblock_alloc_buffer((2,), "int32")
        largest[lanes(0)] = top[lanes(0)]
        for b in T.serial(1, (groups + 15) // 16):
            largest[lanes(0)] = T.max(largest[lanes(0)], top[lanes(b * 16)])
        largest[0] = reduce_max(largest[lanes(0)])
        where[0] = 0
        for g in T.serial(groups):
            if top[g] == largest[0]:
                where[0] = g
        # With NaN nothing compares equal; the first feature then stands in, within bounds, and
        # the step of the group that holds the NaN is NaN.
        where[1] = where[0] * 32
        for k in T.serial(32):
            if T.fabs(row[where[0] * 32 + k]) == largest[0]:
                where[1] = T.min(where[0] * 32 + k, features - 1)
        scales[m, groups + e, 0] = T.cast(where[1], "float32")
        scales[m, groups + e, 1] = row[where[1]]
        row[where[1]] = T.float32(0)
        _group_top(row, where[0], top)


@T.inline
def _quantize_row(row, top, groups, features, codes, scales, m):  # type: ignore[no-untyped-def]
    """row float32 [groups * 32] -> row m of (codes, scales); `row` loses its outliers.

    top float32 [groups rounded up to 16] is scratch.
    """
    for g in T.serial((groups + 15) // 16 * 16 - groups):
        top[groups + g] = T.float32(0)
    for g in T.serial(groups):
        _group_top(row, g, top)
    for e in T.serial(outliers_of(features)):
        _pull_outlier(row, top, groups, features, scales, m, e)
    for g in T.serial(groups):
        with T.sblock("group"):
            T.reads()
            T.writes()
            q = T.sblock_alloc_buffer((2, 16), "int32")
            step = T.sblock_alloc_buffer((2,), "float32")
            step[0] = top[g]
            step[1] = T.if_then_else(step[0] > T.float32(0), T.float32(127) / step[0], T.float32(0))
            for h in T.unroll(2):
                q[h, lanes(0)] = T.cast(round_even(row[lanes(g * 32 + h * 16)] * splat(step[1])), "int32x16")
                for j in T.vectorized(16):
                    codes[m, g * 8 + h * 4 + j // 4, j % 4] = T.cast(q[h, j], "int8")
            scales[m, g, 0] = step[0] * T.float32(1.0 / 127)
            scales[m, g, 1] = step[0] * T.float32(1.0 / 127) * T.cast(
                reduce_add_i32(q[0, lanes(0)] + q[1, lanes(0)]), "float32")


@cache
def rms_norm_quantize(features: int, eps: float) -> Any:
    """x float32 [n, features], weight float32 [features] -> int8 activation of RMSNorm(x).

    RMSNorm: x / sqrt(mean(x^2) + eps) * weight (Zhang and Sennrich 2019).
    """
    groups, outliers = groups_of(features), outliers_of(features)

    @T.prim_func(s_tir=True)
    def rms_norm_quantize_kernel(x_h: T.handle, w_h: T.handle, codes_h: T.handle, scales_h: T.handle):
        T.func_attr({"tirx.is_scheduled": True, "tirx.noalias": True})
        n = T.int64()
        x = T.match_buffer(x_h, (n, features), "float32")
        weight = T.match_buffer(w_h, (features,), "float32")
        codes = T.match_buffer(codes_h, (n, groups * 8, 4), "int8")
        scales = T.match_buffer(scales_h, (n, groups + outliers, 2), "float32")

        @T.inline
        def row(m):  # type: ignore[no-untyped-def]
            with T.sblock("row"):
                T.reads()
                T.writes()
                squares = T.sblock_alloc_buffer((2, 16), "float32")
                inverse = T.sblock_alloc_buffer((1,), "float32")
                values = T.sblock_alloc_buffer((groups * 32,), "float32")
                top = T.sblock_alloc_buffer(((groups + 15) // 16 * 16,), "float32")
                _inverse_rms(x, m, features, eps, squares, inverse)
                for k in T.serial(features):
                    values[k] = x[m, k] * weight[k] * inverse[0]
                for k in T.serial(groups * 32 - features):
                    values[features + k] = T.float32(0)
                _quantize_row(values, top, groups, features, codes, scales, m)

        for_rows(n, row)

    return rms_norm_quantize_kernel.without_attr("global_symbol")


@cache
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

        for_rows(n, row)

    return rms_norm_kernel.without_attr("global_symbol")


@cache
def quantize(features: int) -> Any:
    """x float32 [n, features] -> int8 activation."""
    groups, outliers = groups_of(features), outliers_of(features)

    @T.prim_func(s_tir=True)
    def quantize_kernel(x_h: T.handle, codes_h: T.handle, scales_h: T.handle):
        T.func_attr({"tirx.is_scheduled": True, "tirx.noalias": True})
        n = T.int64()
        x = T.match_buffer(x_h, (n, features), "float32")
        codes = T.match_buffer(codes_h, (n, groups * 8, 4), "int8")
        scales = T.match_buffer(scales_h, (n, groups + outliers, 2), "float32")

        @T.inline
        def row(m):  # type: ignore[no-untyped-def]
            with T.sblock("row"):
                T.reads()
                T.writes()
                values = T.sblock_alloc_buffer((groups * 32,), "float32")
                top = T.sblock_alloc_buffer(((groups + 15) // 16 * 16,), "float32")
                for k in T.serial(features):
                    values[k] = x[m, k]
                for k in T.serial(groups * 32 - features):
                    values[features + k] = T.float32(0)
                _quantize_row(values, top, groups, features, codes, scales, m)

        for_rows(n, row)

    return quantize_kernel.without_attr("global_symbol")


@cache
def silu_mul_quantize(features: int) -> Any:
    """x float32 [n, 2 * features] = gate, up -> int8 activation of silu(gate) * up."""
    groups, outliers = groups_of(features), outliers_of(features)

    @T.prim_func(s_tir=True)
    def silu_mul_quantize_kernel(x_h: T.handle, codes_h: T.handle, scales_h: T.handle):
        T.func_attr({"tirx.is_scheduled": True, "tirx.noalias": True})
        n = T.int64()
        x = T.match_buffer(x_h, (n, 2 * features), "float32")
        codes = T.match_buffer(codes_h, (n, groups * 8, 4), "int8")
        scales = T.match_buffer(scales_h, (n, groups + outliers, 2), "float32")

        @T.inline
        def row(m):  # type: ignore[no-untyped-def]
            with T.sblock("row"):
                T.reads()
                T.writes()
                gate = T.sblock_alloc_buffer((2, 16), "float32")
                up = T.sblock_alloc_buffer((2, 16), "float32")
                values = T.sblock_alloc_buffer((groups * 32,), "float32")
                top = T.sblock_alloc_buffer(((groups + 15) // 16 * 16,), "float32")
                for g in T.serial(groups):
                    _load_group(x, m, g * 32, features - g * 32, features, gate)
                    _load_group(x, m, features + g * 32, features - g * 32, features, up)
                    for h in T.unroll(2):
                        values[lanes(g * 32 + h * 16)] = _silu_mul(gate[h, lanes(0)], up[h, lanes(0)])
                _quantize_row(values, top, groups, features, codes, scales, m)

        for_rows(n, row)

    return silu_mul_quantize_kernel.without_attr("global_symbol")


@cache
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

        for_rows(n, row)

    return silu_mul_kernel.without_attr("global_symbol")
