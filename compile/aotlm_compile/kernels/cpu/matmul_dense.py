"""Matrix product of float32 activations with float32 weights, for models kept unquantized.

Weights are packed as float32 [blocks, inputs, 16]: 16 output rows interleaved.
"""
# fmt: off

from __future__ import annotations

from functools import cache
from typing import Any

from tvm.script import tirx as T

from aotlm_compile.kernels.cpu.blocks import ROWS, blocks_of, store_block
from aotlm_compile.kernels.cpu.vector import lanes, splat, splat_f32


@cache
def matmul_dense(outputs: int, inputs: int, residual: bool, tile: int) -> Any:
    """x float32 [n, inputs], packed weight, [residual float32 [n, outputs]] -> float32 [n, outputs]."""
    blocks = blocks_of(outputs)

    @T.inline
    def tile_of(count, first, x, weight, extra, y, nb):  # type: ignore[no-untyped-def]
        with T.sblock("tile"):
            T.reads()
            T.writes()
            acc = T.sblock_alloc_buffer((count, 16), "float32")
            for i in T.unroll(count):
                acc[i, lanes(0)] = splat_f32(0)
            for k in T.serial(inputs):
                for i in T.unroll(count):
                    acc[i, lanes(0)] = acc[i, lanes(0)] + splat(x[first + i, k]) * weight[nb, k, lanes(0)]
            for i in T.unroll(count):
                store_block(outputs, residual, acc, i, first + i, extra, y, nb)

    @T.inline
    def body(n, x, weight, extra, y):  # type: ignore[no-untyped-def]
        for nb in T.parallel(blocks):
            for t in T.serial(n // tile):
                tile_of(tile, t * tile, x, weight, extra, y, nb)
            for rest in T.serial(n % tile):
                tile_of(1, n // tile * tile + rest, x, weight, extra, y, nb)

    if residual:

        @T.prim_func(s_tir=True)
        def matmul_kernel(x_h: T.handle, w_h: T.handle, r_h: T.handle, y_h: T.handle):
            T.func_attr({"tirx.is_scheduled": True, "tirx.noalias": True})
            n = T.int64()
            x = T.match_buffer(x_h, (n, inputs), "float32")
            weight = T.match_buffer(w_h, (blocks, inputs, ROWS), "float32")
            extra = T.match_buffer(r_h, (n, outputs), "float32")
            y = T.match_buffer(y_h, (n, outputs), "float32")
            body(n, x, weight, extra, y)

    else:

        @T.prim_func(s_tir=True)
        def matmul_kernel(x_h: T.handle, w_h: T.handle, y_h: T.handle):
            T.func_attr({"tirx.is_scheduled": True, "tirx.noalias": True})
            n = T.int64()
            x = T.match_buffer(x_h, (n, inputs), "float32")
            weight = T.match_buffer(w_h, (blocks, inputs, ROWS), "float32")
            y = T.match_buffer(y_h, (n, outputs), "float32")
            body(n, x, weight, y, y)

    return matmul_kernel.without_attr("global_symbol")
