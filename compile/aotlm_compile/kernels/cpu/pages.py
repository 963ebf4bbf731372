"""Kernels that move keys and values in and out of the pages of TVM's paged KV cache.

A layer's cache is float32 [pages, 2, kv_heads, 16, head_dim]. Plane 1 holds values, token by
token. Plane 0 holds keys transposed: feature d of token t lies at flat position d * 16 + t of
the page, so that the 16 scores of a page are one vector. Every kernel that reads pages
(attention too) goes by `key_at`.
"""
# fmt: off

from __future__ import annotations

from functools import cache
from typing import Any

from tvm.script import tirx as T

from aotlm_compile.kernels.cpu.loops import for_rows

PAGE = 16


def key_at(head_dim: int, token: Any, feature: Any) -> tuple[Any, Any]:
    """The last two indices, in plane 0, of a key's feature."""
    flat = feature * PAGE + token
    return flat // head_dim, flat % head_dim


@cache
def append(kv_heads: int, head_dim: int) -> Any:
    """Writes k, v float32 [n, kv_heads, head_dim] to the slots position int32 [n]; -1 is skipped."""

    @T.prim_func(s_tir=True)
    def append_kernel(pages_h: T.handle, k_h: T.handle, v_h: T.handle, pos_h: T.handle):
        T.func_attr({"tirx.is_scheduled": True, "tirx.noalias": True})
        n = T.int64()
        num_pages = T.int64()
        pages_offset = T.int64()
        offset = T.int32()
        pages = T.match_buffer(pages_h, (num_pages, 2, kv_heads, PAGE, head_dim), "float32", elem_offset=pages_offset)
        k = T.match_buffer(k_h, (n, kv_heads, head_dim), "float32")
        v = T.match_buffer(v_h, (n, kv_heads, head_dim), "float32")
        position = T.match_buffer(pos_h, (n,), "int32", elem_offset=offset)

        @T.inline
        def token(m):  # type: ignore[no-untyped-def]
            with T.sblock("token"):
                T.reads()
                T.writes()
                slot: T.let[T.int32] = position[m]
                if slot != T.int32(-1):
                    for h in T.serial(kv_heads):
                        for d in T.serial(head_dim):
                            pages[slot // PAGE, 0, h, key_at(head_dim, slot % PAGE, d)[0], key_at(head_dim, slot % PAGE, d)[1]] = k[m, h, d]
                        for d in T.serial(head_dim):
                            pages[slot // PAGE, 1, h, slot % PAGE, d] = v[m, h, d]

        for_rows(n, token)

    return append_kernel.without_attr("global_symbol")


@T.inline
def _copy_token(pages, kv_heads, head_dim, source_page, source, target_page, target):  # type: ignore[no-untyped-def]
    for h in T.serial(kv_heads):
        for d in T.serial(head_dim):
            pages[target_page, 0, h, key_at(head_dim, target, d)[0], key_at(head_dim, target, d)[1]] = (
                pages[source_page, 0, h, key_at(head_dim, source, d)[0], key_at(head_dim, source, d)[1]])
        for d in T.serial(head_dim):
            pages[target_page, 1, h, target, d] = pages[source_page, 1, h, source, d]


@cache
def copy_single_page(kv_heads: int, head_dim: int) -> Any:
    """Copies the first `length` tokens of a page to another: a fork in the middle of a page."""

    @T.prim_func(s_tir=True)
    def copy_single_page_kernel(pages_h: T.handle, source: T.int64, target: T.int64, length: T.int64):
        T.func_attr({"tirx.is_scheduled": True})
        num_pages = T.int32()
        pages_offset = T.int64()
        pages = T.match_buffer(pages_h, (num_pages, 2, kv_heads, PAGE, head_dim), "float32", elem_offset=pages_offset)
        for t in T.serial(length):
            with T.sblock("token"):
                T.reads()
                T.writes()
                _copy_token(pages, kv_heads, head_dim, source, t, target, t)

    return copy_single_page_kernel.without_attr("global_symbol")


@cache
def compact_copy(kv_heads: int, head_dim: int) -> Any:
    """Moves the accepted tokens of a token tree together: (source, target) slots, ragged by sequence."""

    @T.prim_func(s_tir=True)
    def compact_copy_kernel(pages_h: T.handle, indptr_h: T.handle, slots_h: T.handle, batch: T.int32):
        T.func_attr({"tirx.is_scheduled": True})
        num_pages = T.int32()
        total = T.int32()
        pages_offset = T.int64()
        indptr_offset = T.int32()
        slots_offset = T.int32()
        pages = T.match_buffer(pages_h, (num_pages, 2, kv_heads, PAGE, head_dim), "float32", elem_offset=pages_offset)
        indptr = T.match_buffer(indptr_h, (batch + 1,), "int32", elem_offset=indptr_offset)
        slots = T.match_buffer(slots_h, (2, total), "int32", elem_offset=slots_offset)
        for i in T.serial(indptr[batch]):
            with T.sblock("token"):
                T.reads()
                T.writes()
                source: T.let[T.int32] = slots[0, i]
                target: T.let[T.int32] = slots[1, i]
                _copy_token(pages, kv_heads, head_dim, source // PAGE, source % PAGE, target // PAGE, target % PAGE)

    return compact_copy_kernel.without_attr("global_symbol")


@cache
def debug_get_kv(layers: int, kv_heads: int, head_dim: int) -> Any:
    """Reads one layer's keys and values at slots int32 [n] into k, v float32 [layers, n, kv_heads, head_dim]."""

    @T.prim_func(s_tir=True)
    def debug_get_kv_kernel(pages_h: T.handle, pos_h: T.handle, k_h: T.handle, v_h: T.handle, layer: T.int64):
        T.func_attr({"tirx.is_scheduled": True, "tirx.noalias": True})
        n = T.int64()
        num_pages = T.int64()
        pages_offset = T.int64()
        offset = T.int64()
        pages = T.match_buffer(pages_h, (num_pages, 2, kv_heads, PAGE, head_dim), "float32", elem_offset=pages_offset)
        position = T.match_buffer(pos_h, (n,), "int32", elem_offset=offset)
        k = T.match_buffer(k_h, (layers, n, kv_heads, head_dim), "float32")
        v = T.match_buffer(v_h, (layers, n, kv_heads, head_dim), "float32")
        for p in T.serial(n):
            with T.sblock("token"):
                T.reads()
                T.writes()
                slot: T.let[T.int32] = position[p]
                for h in T.serial(kv_heads):
                    for d in T.serial(head_dim):
                        k[layer, p, h, d] = pages[slot // PAGE, 0, h, key_at(head_dim, slot % PAGE, d)[0], key_at(head_dim, slot % PAGE, d)[1]]
                        v[layer, p, h, d] = pages[slot // PAGE, 1, h, slot % PAGE, d]

    return debug_get_kv_kernel.without_attr("global_symbol")
