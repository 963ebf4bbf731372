"""Picking rows: token embeddings out of packed weights, and chosen rows of a matrix."""
# fmt: off

from __future__ import annotations

from functools import cache
from typing import Any

from tvm.script import tirx as T

from aotlm_compile.kernels.cpu.activation import groups_of
from aotlm_compile.kernels.cpu.blocks import ROWS, blocks_of
from aotlm_compile.kernels.cpu.loops import for_rows


@cache
def embed_grouped(vocab: int, features: int, bits: int) -> Any:
    """ids int32 [n], packed weight of `matmul_grouped` -> float32 [n, features], dequantized."""
    blocks, groups = blocks_of(vocab), groups_of(features)
    vectors = 4 if bits == 4 else 8

    @T.prim_func(s_tir=True)
    def embed_kernel(ids_h: T.handle, w_h: T.handle, ws_h: T.handle, y_h: T.handle):
        T.func_attr({"tirx.is_scheduled": True, "tirx.noalias": True})
        n = T.int64()
        ids = T.match_buffer(ids_h, (n,), "int32")
        weight = T.match_buffer(w_h, (blocks, groups, vectors, 64), "uint8")
        scale = T.match_buffer(ws_h, (blocks, groups, 2, 16), "float16")
        y = T.match_buffer(y_h, (n, features), "float32")

        @T.inline
        def row(m):  # type: ignore[no-untyped-def]
            for k in T.serial(features):
                with T.sblock("value"):
                    T.reads()
                    T.writes()
                    block: T.let[T.int32] = ids[m] // ROWS
                    lane: T.let[T.int32] = ids[m] % ROWS
                    if bits == 4:
                        y[m, k] = T.cast(
                            (weight[block, k // 32, k % 16 // 4, lane * 4 + k % 4]
                             >> T.cast(k % 32 // 16 * 4, "uint8")) & T.uint8(15), "float32",
                        ) * T.cast(scale[block, k // 32, 0, lane], "float32") + T.cast(scale[block, k // 32, 1, lane], "float32")
                    else:
                        y[m, k] = T.cast(
                            weight[block, k // 32, k % 32 // 4, lane * 4 + k % 4], "float32",
                        ) * T.cast(scale[block, k // 32, 0, lane], "float32") + T.cast(scale[block, k // 32, 1, lane], "float32")

        for_rows(n, row)

    return embed_kernel.without_attr("global_symbol")


@cache
def embed_dense(vocab: int, features: int) -> Any:
    """ids int32 [n], packed weight of `matmul_dense` -> float32 [n, features]."""
    blocks = blocks_of(vocab)

    @T.prim_func(s_tir=True)
    def embed_kernel(ids_h: T.handle, w_h: T.handle, y_h: T.handle):
        T.func_attr({"tirx.is_scheduled": True, "tirx.noalias": True})
        n = T.int64()
        ids = T.match_buffer(ids_h, (n,), "int32")
        weight = T.match_buffer(w_h, (blocks, features, ROWS), "float32")
        y = T.match_buffer(y_h, (n, features), "float32")

        @T.inline
        def row(m):  # type: ignore[no-untyped-def]
            for k in T.serial(features):
                with T.sblock("value"):
                    T.reads()
                    T.writes()
                    y[m, k] = weight[ids[m] // ROWS, k, ids[m] % ROWS]

        for_rows(n, row)

    return embed_kernel.without_attr("global_symbol")


@cache
def take_rows(features: int) -> Any:
    """x float32 [n, features], rows int32 [batch] -> float32 [batch, features]."""

    @T.prim_func(s_tir=True)
    def take_kernel(x_h: T.handle, rows_h: T.handle, y_h: T.handle):
        T.func_attr({"tirx.is_scheduled": True, "tirx.noalias": True})
        n = T.int64()
        batch = T.int64()
        x = T.match_buffer(x_h, (n, features), "float32")
        rows = T.match_buffer(rows_h, (batch,), "int32")
        y = T.match_buffer(y_h, (batch, features), "float32")
        for b in T.serial(batch):
            for k in T.serial(features):
                with T.sblock("value"):
                    T.reads()
                    T.writes()
                    y[b, k] = x[rows[b], k]

    return take_kernel.without_attr("global_symbol")
