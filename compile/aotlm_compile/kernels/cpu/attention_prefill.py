"""Prefill attention: new tokens against each other (ragged) and against earlier pages (paged).

A task is one key/value head and a tile of 16 new tokens of one sequence, for all the query heads
that share that key/value head.
"""
# fmt: off

from __future__ import annotations

from functools import cache
from typing import Any

from tvm.script import tirx as T

from aotlm_compile.kernels.cpu import attention as at
from aotlm_compile.kernels.cpu.loops import for_rows
from aotlm_compile.kernels.cpu.pages import PAGE, key_at
from aotlm_compile.kernels.cpu.vector import lanes, splat

TOKENS = 16  # new tokens a task


@T.inline
def _load_queries(q, first, count, h, group, head_dim, sm_scale, query):  # type: ignore[no-untyped-def]
    """query[i * group + j] = q[first + i, h * group + j] * sm_scale; absent tokens repeat the last one."""
    for i in T.serial(TOKENS):
        for j in T.serial(group):
            for c in T.serial(head_dim // 16):
                query[i * group + j, lanes(c * 16)] = q[first + T.min(i, count - 1), h * group + j, lanes(c * 16)] * splat(sm_scale)


@T.inline
def _store_rows(out, lse, first, count, h, group, head_dim, acc, top, mass, scalar):  # type: ignore[no-untyped-def]
    for i in T.serial(count):
        for j in T.serial(group):
            @T.inline
            def store(c, vector):  # type: ignore[no-untyped-def]
                out[first + i, h * group + j, lanes(c * 16)] = vector

            @T.inline
            def store_lse(value):  # type: ignore[no-untyped-def]
                lse[first + i, h * group + j] = value

            at.finish(head_dim, i * group + j, acc, top, mass, scalar, store, store_lse)


@cache
def prefill_ragged(heads: int, kv_heads: int, head_dim: int) -> Any:
    """q against the k, v of the same step, causal -> out like q, lse float32 [tokens, heads].

    q float32 [tokens, heads, head_dim]; k, v float32 [tokens, kv_heads, head_dim]; sequence b owns
    rows indptr[b] .. indptr[b + 1]. Arguments are those TVM's cache calls its ragged kernel with.
    """
    group = heads // kv_heads
    rows = TOKENS * group
    tile = at.tile_for(rows)

    @T.prim_func(s_tir=True)
    def prefill_ragged_kernel(
        q_h: T.handle, q_indptr_h: T.handle, k_h: T.handle, v_h: T.handle, kv_indptr_h: T.handle,
        q_position_h: T.handle, k_offset_h: T.handle, out_h: T.handle, lse_h: T.handle,
        causal: T.int32, rotary_mode: T.int32, rope_scale: T.float32, rope_theta: T.float32, sm_scale: T.float32,
    ):
        T.func_attr({"tirx.is_scheduled": True})
        batch = T.int32()
        tokens = T.int32()
        kv_tokens = T.int32()
        o1 = T.int32()
        o2 = T.int32()
        o3 = T.int32()
        o4 = T.int32()
        q = T.match_buffer(q_h, (tokens, heads, head_dim), "float32")
        q_indptr = T.match_buffer(q_indptr_h, (batch + 1,), "int32", elem_offset=o1)
        k = T.match_buffer(k_h, (kv_tokens, kv_heads, head_dim), "float32")
        v = T.match_buffer(v_h, (kv_tokens, kv_heads, head_dim), "float32")
        kv_indptr = T.match_buffer(kv_indptr_h, (batch + 1,), "int32", elem_offset=o2)
        q_position = T.match_buffer(q_position_h, (tokens,), "int32", elem_offset=o3)
        k_offset = T.match_buffer(k_offset_h, (batch,), "int32", elem_offset=o4)
        out = T.match_buffer(out_h, (tokens, heads, head_dim), "float32")
        lse = T.match_buffer(lse_h, (tokens, heads), "float32")
        with T.sblock("root"):
            T.reads()
            T.writes()
            # Keys transposed once: 64 keys' feature d are 4 vectors. Sequence b's blocks start
            # at kv_indptr[b] // 64 + b, as the tiles do (`find_owner`).
            kt = T.sblock_alloc_buffer((kv_tokens // at.BLOCK + batch, kv_heads, head_dim, at.BLOCK), "float32")
            for bh in T.parallel(batch * kv_heads):
                with T.sblock("transpose"):
                    T.reads()
                    T.writes()
                    b: T.let[T.int32] = bh // kv_heads
                    h: T.let[T.int32] = bh % kv_heads
                    k0: T.let[T.int32] = kv_indptr[b]
                    nk: T.let[T.int32] = kv_indptr[b + 1] - k0
                    for t in T.serial(nk):
                        for d in T.serial(head_dim):
                            kt[k0 // at.BLOCK + b + t // at.BLOCK, h, d, t % at.BLOCK] = k[k0 + t, h, d]
            for task in T.parallel((tokens // TOKENS + batch) * kv_heads):
                with T.sblock("task"):
                    T.reads()
                    T.writes()
                    query = T.sblock_alloc_buffer((rows, head_dim), "float32")
                    acc = T.sblock_alloc_buffer((rows, head_dim), "float32")
                    top = T.sblock_alloc_buffer((rows,), "float32")
                    mass = T.sblock_alloc_buffer((rows, 16), "float32")
                    prob = T.sblock_alloc_buffer((tile, at.BLOCK), "float32")
                    scalar = T.sblock_alloc_buffer((1,), "float32")
                    found = T.sblock_alloc_buffer((1,), "int32")
                    # Later tiles see more keys: pairing first with last evens the threads out.
                    slots: T.let[T.int32] = (tokens // TOKENS + batch) * kv_heads
                    fair: T.let[T.int32] = T.if_then_else(task % 2 == 0, task // 2, slots - 1 - task // 2)
                    h: T.let[T.int32] = fair % kv_heads
                    at.find_owner(q_indptr, batch, TOKENS, fair // kv_heads, found)
                    b: T.let[T.int32] = found[0]
                    q0: T.let[T.int32] = q_indptr[b]
                    nq: T.let[T.int32] = q_indptr[b + 1] - q0
                    k0: T.let[T.int32] = kv_indptr[b]
                    nk: T.let[T.int32] = kv_indptr[b + 1] - k0
                    t0: T.let[T.int32] = (fair // kv_heads - q0 // TOKENS - b) * TOKENS
                    count: T.let[T.int32] = T.min(nq - t0, TOKENS)
                    if count > 0:
                        seen: T.let[T.int32] = T.if_then_else(causal != 0, nk - nq + t0 + count, nk)
                        _load_queries(q, q0 + t0, count, h, group, head_dim, sm_scale, query)
                        at.begin(rows, head_dim, acc, top, mass)
                        for kb in T.serial((seen + at.BLOCK - 1) // at.BLOCK):
                            at.fold(
                                tile, (count * group + tile - 1) // tile, head_dim, query,
                                lambda d, w: kt[k0 // at.BLOCK + b + kb, h, d, lanes(w * 16)],
                                lambda t, c: v[k0 + kb * at.BLOCK + t, h, lanes(c * 16)],
                                lambda row: T.if_then_else(causal != 0, nk - nq + t0 + row // group + 1, nk) - kb * at.BLOCK,
                                T.min(seen - kb * at.BLOCK, at.BLOCK), acc, top, mass, prob)
                        _store_rows(out, lse, q0 + t0, count, h, group, head_dim, acc, top, mass, scalar)

    return prefill_ragged_kernel.without_attr("global_symbol")


@cache
def prefill_paged(heads: int, kv_heads: int, head_dim: int) -> Any:
    """q float32 [tokens, heads, head_dim] against whole pages -> out, lse; every row sees every key.

    The cache holds the earlier tokens only, so nothing needs a mask (`causal` is 0 then).
    Arguments are those TVM's cache calls its paged prefill kernel with.
    """
    group = heads // kv_heads
    rows = TOKENS * group
    tile = at.tile_for(rows)

    @T.prim_func(s_tir=True)
    def prefill_paged_kernel(
        q_h: T.handle, q_indptr_h: T.handle, pages_h: T.handle, indptr_h: T.handle, values_h: T.handle,
        length_h: T.handle, k_offset_h: T.handle, q_position_h: T.handle, out_h: T.handle, lse_h: T.handle,
        causal: T.int32, rotary_mode: T.int32, rope_scale: T.float32, rope_theta: T.float32, sm_scale: T.float32,
    ):
        T.func_attr({"tirx.is_scheduled": True})
        batch = T.int32()
        tokens = T.int32()
        used = T.int32()
        num_pages = T.int32()
        o0 = T.int64()
        o1 = T.int32()
        o2 = T.int32()
        o3 = T.int32()
        o4 = T.int32()
        o5 = T.int32()
        o6 = T.int32()
        q = T.match_buffer(q_h, (tokens, heads, head_dim), "float32")
        q_indptr = T.match_buffer(q_indptr_h, (batch + 1,), "int32", elem_offset=o1)
        pages = T.match_buffer(pages_h, (num_pages, 2, kv_heads, PAGE, head_dim), "float32", elem_offset=o0)
        indptr = T.match_buffer(indptr_h, (batch + 1,), "int32", elem_offset=o2)
        values = T.match_buffer(values_h, (used,), "int32", elem_offset=o3)
        last_page_len = T.match_buffer(length_h, (batch,), "int32", elem_offset=o4)
        k_offset = T.match_buffer(k_offset_h, (batch,), "int32", elem_offset=o5)
        q_position = T.match_buffer(q_position_h, (tokens,), "int32", elem_offset=o6)
        out = T.match_buffer(out_h, (tokens, heads, head_dim), "float32")
        lse = T.match_buffer(lse_h, (tokens, heads), "float32")
        for task in T.parallel((tokens // TOKENS + batch) * kv_heads):
            with T.sblock("task"):
                T.reads()
                T.writes()
                query = T.sblock_alloc_buffer((rows, head_dim), "float32")
                acc = T.sblock_alloc_buffer((rows, head_dim), "float32")
                top = T.sblock_alloc_buffer((rows,), "float32")
                mass = T.sblock_alloc_buffer((rows, 16), "float32")
                prob = T.sblock_alloc_buffer((tile, at.BLOCK), "float32")
                scalar = T.sblock_alloc_buffer((1,), "float32")
                found = T.sblock_alloc_buffer((1,), "int32")
                h: T.let[T.int32] = task % kv_heads
                at.find_owner(q_indptr, batch, TOKENS, task // kv_heads, found)
                b: T.let[T.int32] = found[0]
                t0: T.let[T.int32] = q_indptr[b] + (task // kv_heads - q_indptr[b] // TOKENS - b) * TOKENS
                count: T.let[T.int32] = T.min(q_indptr[b + 1] - t0, TOKENS)
                if count > 0:
                    begin_page: T.let[T.int32] = indptr[b]
                    n_pages: T.let[T.int32] = indptr[b + 1] - begin_page
                    kv_len: T.let[T.int32] = T.max((n_pages - 1) * PAGE + last_page_len[b], 0)
                    _load_queries(q, t0, count, h, group, head_dim, sm_scale, query)
                    at.begin(rows, head_dim, acc, top, mass)
                    for kb in T.serial((n_pages + at.VECTORS - 1) // at.VECTORS):
                        with T.sblock("block"):
                            T.reads()
                            T.writes()
                            page = T.sblock_alloc_buffer((at.VECTORS,), "int32")
                            for w in T.unroll(at.VECTORS):
                                page[w] = values[begin_page + T.min(kb * at.VECTORS + w, n_pages - 1)]
                            at.fold(
                                tile, (count * group + tile - 1) // tile, head_dim, query,
                                lambda d, w: pages[page[w], 0, h, key_at(head_dim, 0, d)[0], lanes(key_at(head_dim, 0, d)[1])],
                                lambda t, c: pages[page[t // PAGE], 1, h, t % PAGE, lanes(c * 16)],
                                lambda row: kv_len - kb * at.BLOCK,
                                T.min(kv_len - kb * at.BLOCK, at.BLOCK), acc, top, mass, prob)
                    _store_rows(out, lse, t0, count, h, group, head_dim, acc, top, mass, scalar)

    return prefill_paged_kernel.without_attr("global_symbol")


@cache
def merge_states(heads: int, head_dim: int) -> Any:
    """Joins two partial attention results in place, by their log-sum-exp in base 2.

    out, other float32 [tokens, heads, head_dim]; lse, other_lse float32 [tokens, heads].
    """

    @T.prim_func(s_tir=True)
    def merge_states_kernel(out_h: T.handle, lse_h: T.handle, other_h: T.handle, other_lse_h: T.handle):
        T.func_attr({"tirx.is_scheduled": True})
        n = T.int32()
        out = T.match_buffer(out_h, (n, heads, head_dim), "float32")
        lse = T.match_buffer(lse_h, (n, heads), "float32")
        other = T.match_buffer(other_h, (n, heads, head_dim), "float32")
        other_lse = T.match_buffer(other_lse_h, (n, heads), "float32")

        @T.inline
        def token(m):  # type: ignore[no-untyped-def]
            for h in T.serial(heads):
                with T.sblock("merge"):
                    T.reads()
                    T.writes()
                    w = T.sblock_alloc_buffer((3,), "float32")
                    w[2] = T.max(lse[m, h], other_lse[m, h])
                    w[0] = T.exp2(lse[m, h] - w[2])
                    w[1] = T.exp2(other_lse[m, h] - w[2])
                    lse[m, h] = T.log2(w[0] + w[1]) + w[2]
                    for d in T.serial(head_dim):
                        out[m, h, d] = out[m, h, d] * (w[0] / (w[0] + w[1])) + other[m, h, d] * (w[1] / (w[0] + w[1]))

        for_rows(n, token)

    return merge_states_kernel.without_attr("global_symbol")
