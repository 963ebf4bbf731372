"""Rotary position embedding (Su et al. 2021), and splitting fused q, k, v.

Half-rotation ("NeoX") layout: feature d turns together with d + head_dim / 2. The sines and
cosines come from a table made once per KV cache, not from one evaluation a head and layer.
"""
# fmt: off

from __future__ import annotations

from functools import cache
from typing import Any

from tvm.script import tirx as T

from aotlm_compile.kernels.cpu.loops import for_rows


@cache
def rotary_table(context: int, half: int) -> Any:
    """frequency float64 [half] -> float32 [context, 2, half]: cos, sin of position * frequency.

    `frequency`: the angle per position of each pair of features, any scaling of the model
    already applied. Angles are taken in float64: at position 8191 float32 would be off by 5e-4.
    """

    @T.prim_func(s_tir=True)
    def rotary_table_kernel(frequency_h: T.handle, table_h: T.handle):
        T.func_attr({"tirx.is_scheduled": True, "tirx.noalias": True})
        frequency = T.match_buffer(frequency_h, (half,), "float64")
        table = T.match_buffer(table_h, (context, 2, half), "float32")
        for p in T.parallel(context):
            for d in T.serial(half):
                with T.sblock("pair"):
                    T.reads()
                    T.writes()
                    table[p, 0, d] = T.cast(T.cos(T.cast(p, "float64") * frequency[d]), "float32")
                    table[p, 1, d] = T.cast(T.sin(T.cast(p, "float64") * frequency[d]), "float32")

    return rotary_table_kernel.without_attr("global_symbol")


@cache
def split_rotary(heads: int, kv_heads: int, head_dim: int, context: int) -> Any:
    """qkv float32 [n, heads + 2 * kv_heads, head_dim], position int32 [n], table -> q, k, v.

    q float32 [n, heads, head_dim]; k, v float32 [n, kv_heads, head_dim].
    """
    half = head_dim // 2

    @T.inline
    def turn(x, m, source, y, target, table, p):  # type: ignore[no-untyped-def]
        for d in T.serial(half):
            y[m, target, d] = x[m, source, d] * table[p, 0, d] - x[m, source, d + half] * table[p, 1, d]
            y[m, target, d + half] = x[m, source, d + half] * table[p, 0, d] + x[m, source, d] * table[p, 1, d]

    @T.prim_func(s_tir=True)
    def split_rotary_kernel(qkv_h: T.handle, pos_h: T.handle, q_h: T.handle, k_h: T.handle, v_h: T.handle, table_h: T.handle):
        T.func_attr({"tirx.is_scheduled": True, "tirx.noalias": True})
        n = T.int32()
        offset = T.int32()
        qkv = T.match_buffer(qkv_h, (n, heads + 2 * kv_heads, head_dim), "float32")
        position = T.match_buffer(pos_h, (n,), "int32", elem_offset=offset)
        q = T.match_buffer(q_h, (n, heads, head_dim), "float32")
        k = T.match_buffer(k_h, (n, kv_heads, head_dim), "float32")
        v = T.match_buffer(v_h, (n, kv_heads, head_dim), "float32")
        table = T.match_buffer(table_h, (context, 2, half), "float32")

        @T.inline
        def token(m):  # type: ignore[no-untyped-def]
            with T.sblock("token"):
                T.reads()
                T.writes()
                p: T.let[T.int32] = position[m]
                for h in T.serial(heads):
                    turn(qkv, m, h, q, h, table, p)
                for h in T.serial(kv_heads):
                    turn(qkv, m, heads + h, k, h, table, p)
                    for d in T.serial(head_dim):
                        v[m, h, d] = qkv[m, heads + kv_heads + h, d]

        for_rows(n, token)

    return split_rotary_kernel.without_attr("global_symbol")
