"""Matrix product of int8 activations with 4-bit or 8-bit grouped weights.

Weights are packed once, at compile time (`aotlm_compile.quantize.packing`):
    codes  uint8   [blocks, groups, 4 or 8, 64]   16 output rows interleaved: byte 4 * row + j of
                                                  vector v is column 4 * v + j of the group; 4-bit:
                                                  vectors v and v + 4 in the low and high nibbles
    scales float16 [blocks, groups, 2, 16]        (scale, minimum) of each row
with weight = code * scale + minimum. blocks = ceil(outputs / 16), groups = ceil(inputs / 32).
"""
# fmt: off

from __future__ import annotations

from functools import cache
from typing import Any

from tvm.script import tirx as T

from aotlm_compile.kernels.cpu.activation import groups_of, outliers_of
from aotlm_compile.kernels.cpu.blocks import blocks_of, store_block
from aotlm_compile.kernels.cpu.dot import DOTS
from aotlm_compile.kernels.cpu.vector import fma, lanes, splat, splat_f32

PREFETCH_GROUPS = 20  # as measured: nearer comes too late, farther evicts what is not used yet


@cache
def matmul_grouped(
    outputs: int, inputs: int, bits: int, residual: bool, level_dot: str, tile: int
) -> Any:
    """(codes, scales) of n rows, packed weight, [residual float32 [n, outputs]] -> float32 [n, outputs].

    `tile` activation rows share one pass over a block's weights; the rest takes tiles of 4, 2
    and 1. A row's result does not depend on the tile it falls in: floating-point sums go in the
    same order in all of them, so an answer does not depend on what shares the batch.
    """
    blocks, groups, outliers = blocks_of(outputs), groups_of(inputs), outliers_of(inputs)
    vectors = 4 if bits == 4 else 8
    dot = DOTS[level_dot]
    nibble = T.broadcast(T.uint8(15), 64)

    @T.inline
    def unpack(weight, w, nb, g):  # type: ignore[no-untyped-def]
        for v in T.unroll(vectors):
            if bits == 4:
                w[v, T.ramp(0, 1, 64)] = weight[nb, g, v, T.ramp(0, 1, 64)] & nibble
                # Shifting 16-bit words drags a neighbour's bits in; the mask drops them.
                w[v + 4, T.ramp(0, 1, 64)] = T.reinterpret(
                    "uint8x64",
                    T.reinterpret("uint16x32", weight[nb, g, v, T.ramp(0, 1, 64)]) >> T.broadcast(T.uint16(4), 32),
                ) & nibble
            else:
                w[v, T.ramp(0, 1, 64)] = weight[nb, g, v, T.ramp(0, 1, 64)]

    @T.inline
    def prefetch(weight, scale, nb, g):  # type: ignore[no-untyped-def]
        for v in T.unroll(vectors):
            T.evaluate(T.call_llvm_intrin(
                "void", "llvm.prefetch", T.address_of(weight[nb, g + PREFETCH_GROUPS, v, 0]),
                T.int32(0), T.int32(3), T.int32(1)))
        T.evaluate(T.call_llvm_intrin(
            "void", "llvm.prefetch", T.address_of(scale[nb, g + PREFETCH_GROUPS, 0, 0]),
            T.int32(0), T.int32(3), T.int32(1)))

    @T.inline
    def add_outlier(acc, i, x_scale, row, slot, weight, scale, nb):  # type: ignore[no-untyped-def]
        """acc[i] += a feature kept in float32 times its column of the block, dequantized."""
        k: T.let[T.int32] = T.cast(x_scale[row, slot, 0], "int32")
        v: T.let[T.int32] = k % (vectors * 4) // 4
        shift: T.let[T.int32] = k % 4 * 8 + k % 32 // (vectors * 4) * 4
        acc[i, lanes(0)] = fma(
            fma(
                T.cast(
                    (T.reinterpret("int32x16", weight[nb, k // 32, v, T.ramp(0, 1, 64)]) >> splat(shift))
                    & splat(T.int32(2 ** bits - 1)), "float32x16"),
                T.cast(scale[nb, k // 32, 0, lanes(0)], "float32x16"),
                T.cast(scale[nb, k // 32, 1, lanes(0)], "float32x16")),
            splat(x_scale[row, slot, 1]), acc[i, lanes(0)])

    @T.inline
    def tile_of(count, first, x, x_scale, weight, scale, extra, y, nb, ahead):  # type: ignore[no-untyped-def]
        """Rows first .. first + count of block nb."""
        with T.sblock("tile"):
            T.reads()
            T.writes()
            # Few rows keep two integer sums each, or every dot product would wait for the last.
            chains = T.meta_var(1 if count >= 4 else 2)
            acc = T.sblock_alloc_buffer((count, 16), "float32")
            part = T.sblock_alloc_buffer((chains, 16), "int32")
            w = T.sblock_alloc_buffer((8, 64), "uint8")
            sc = T.sblock_alloc_buffer((2, 16), "float32")
            for i in T.unroll(count):
                acc[i, lanes(0)] = splat_f32(0)
            for g in T.serial(groups):
                if ahead:
                    prefetch(weight, scale, nb, g)
                unpack(weight, w, nb, g)
                for s in T.unroll(2):
                    sc[s, lanes(0)] = T.cast(scale[nb, g, s, lanes(0)], "float32x16")
                for i in T.unroll(count):
                    for c in T.unroll(chains):
                        part[c, lanes(0)] = T.broadcast(T.int32(0), 16)
                    for v in T.unroll(8):
                        part[v * chains // 8, lanes(0)] = dot(
                            part[v * chains // 8, lanes(0)],
                            w[v, T.ramp(0, 1, 64)],
                            T.reinterpret("int32", x[first + i, g * 8 + v, T.ramp(0, 1, 4)]),
                            bits,
                        )
                    for c in T.unroll(chains - 1):
                        part[0, lanes(0)] = part[0, lanes(0)] + part[1, lanes(0)]
                    acc[i, lanes(0)] = fma(
                        T.cast(part[0, lanes(0)], "float32x16"),
                        sc[0, lanes(0)] * splat(x_scale[first + i, g, 0]), acc[i, lanes(0)])
                    acc[i, lanes(0)] = fma(
                        sc[1, lanes(0)], splat(x_scale[first + i, g, 1]), acc[i, lanes(0)])
            for i in T.unroll(count):
                for e in T.serial(outliers):
                    add_outlier(acc, i, x_scale, first + i, groups + e, weight, scale, nb)
            for i in T.unroll(count):
                store_block(outputs, residual, acc, i, first + i, extra, y, nb)

    @T.inline
    def body(n, x, x_scale, weight, scale, extra, y):  # type: ignore[no-untyped-def]
        for nb in T.parallel(blocks):
            # The first tile brings the block's weights from memory, the others find them near.
            if n >= tile:
                tile_of(tile, 0, x, x_scale, weight, scale, extra, y, nb, True)
            for t in T.serial(1, T.max(n // tile, 1)):
                tile_of(tile, t * tile, x, x_scale, weight, scale, extra, y, nb, False)
            if tile > 4:
                if n % tile >= 4:
                    tile_of(4, n // tile * tile, x, x_scale, weight, scale, extra, y, nb, True)
            if n % 4 >= 2:
                tile_of(2, n // 4 * 4, x, x_scale, weight, scale, extra, y, nb, True)
            if n % 2 == 1:
                tile_of(1, n - 1, x, x_scale, weight, scale, extra, y, nb, True)

    if residual:

        @T.prim_func(s_tir=True)
        def matmul_kernel(x_h: T.handle, xs_h: T.handle, w_h: T.handle, ws_h: T.handle, r_h: T.handle, y_h: T.handle):
            T.func_attr({"tirx.is_scheduled": True, "tirx.noalias": True})
            n = T.int64()
            x = T.match_buffer(x_h, (n, groups * 8, 4), "int8")
            x_scale = T.match_buffer(xs_h, (n, groups + outliers, 2), "float32")
            weight = T.match_buffer(w_h, (blocks, groups, vectors, 64), "uint8")
            scale = T.match_buffer(ws_h, (blocks, groups, 2, 16), "float16")
            extra = T.match_buffer(r_h, (n, outputs), "float32")
            y = T.match_buffer(y_h, (n, outputs), "float32")
            body(n, x, x_scale, weight, scale, extra, y)

    else:

        @T.prim_func(s_tir=True)
        def matmul_kernel(x_h: T.handle, xs_h: T.handle, w_h: T.handle, ws_h: T.handle, y_h: T.handle):
            T.func_attr({"tirx.is_scheduled": True, "tirx.noalias": True})
            n = T.int64()
            x = T.match_buffer(x_h, (n, groups * 8, 4), "int8")
            x_scale = T.match_buffer(xs_h, (n, groups + outliers, 2), "float32")
            weight = T.match_buffer(w_h, (blocks, groups, vectors, 64), "uint8")
            scale = T.match_buffer(ws_h, (blocks, groups, 2, 16), "float16")
            y = T.match_buffer(y_h, (n, outputs), "float32")
            body(n, x, x_scale, weight, scale, y, y)

    return matmul_kernel.without_attr("global_symbol")
