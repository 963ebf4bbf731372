"""Decode attention: one new token a sequence against its pages."""
# fmt: off

from __future__ import annotations

from functools import cache
from typing import Any

from tvm.script import tirx as T

from aotlm_compile.kernels.cpu import attention as at
from aotlm_compile.kernels.cpu.pages import PAGE, key_at
from aotlm_compile.kernels.cpu.vector import MASKED, lanes, splat

# A sequence's pages are split among tasks, this many each (128 tokens), and the partial results
# joined: long sequences keep every thread busy. The split depends on nothing but the sequence,
# so its result does not depend on what shares the batch.
PAGES_PER_TASK = 8
BLOCKS_PER_TASK = PAGES_PER_TASK // at.VECTORS


@cache
def decode_paged(heads: int, kv_heads: int, head_dim: int) -> Any:
    """q float32 [batch, heads, head_dim] against pages -> out like q, lse float32 [batch, heads].

    Arguments and their order are those TVM's cache calls its decode kernel with.
    """
    group = heads // kv_heads
    tile = at.tile_for(group)

    @T.prim_func(s_tir=True)
    def decode_paged_kernel(
        q_h: T.handle, pages_h: T.handle, indptr_h: T.handle, values_h: T.handle, length_h: T.handle,
        k_offset_h: T.handle, q_position_h: T.handle, out_h: T.handle, lse_h: T.handle,
        rotary_mode: T.int32, rope_scale: T.float32, rope_theta: T.float32, sm_scale: T.float32,
    ):
        T.func_attr({"tirx.is_scheduled": True})
        batch = T.int32()
        used = T.int32()
        num_pages = T.int32()
        o0 = T.int64()
        o1 = T.int32()
        o2 = T.int32()
        o3 = T.int32()
        o4 = T.int32()
        o5 = T.int32()
        q = T.match_buffer(q_h, (batch, heads, head_dim), "float32")
        pages = T.match_buffer(pages_h, (num_pages, 2, kv_heads, PAGE, head_dim), "float32", elem_offset=o0)
        indptr = T.match_buffer(indptr_h, (batch + 1,), "int32", elem_offset=o1)
        values = T.match_buffer(values_h, (used,), "int32", elem_offset=o2)
        last_page_len = T.match_buffer(length_h, (batch,), "int32", elem_offset=o3)
        k_offset = T.match_buffer(k_offset_h, (batch,), "int32", elem_offset=o4)
        q_position = T.match_buffer(q_position_h, (batch,), "int32", elem_offset=o5)
        out = T.match_buffer(out_h, (batch, heads, head_dim), "float32")
        lse = T.match_buffer(lse_h, (batch, heads), "float32")
        with T.sblock("root"):
            T.reads()
            T.writes()
            # Sequence b owns slots indptr[b] // PAGES_PER_TASK + b and up, always enough for it.
            part = T.sblock_alloc_buffer((used // PAGES_PER_TASK + batch, kv_heads, group, head_dim), "float32")
            part_lse = T.sblock_alloc_buffer((used // PAGES_PER_TASK + batch, kv_heads, group), "float32")
            for task in T.parallel((used // PAGES_PER_TASK + batch) * kv_heads):
                with T.sblock("task"):
                    T.reads()
                    T.writes()
                    scratch_q = T.sblock_alloc_buffer((group, head_dim), "float32")
                    acc = T.sblock_alloc_buffer((group, head_dim), "float32")
                    top = T.sblock_alloc_buffer((group,), "float32")
                    mass = T.sblock_alloc_buffer((group, 16), "float32")
                    prob = T.sblock_alloc_buffer((tile, at.BLOCK), "float32")
                    scalar = T.sblock_alloc_buffer((1,), "float32")
                    found = T.sblock_alloc_buffer((1,), "int32")
                    slot: T.let[T.int32] = task // kv_heads
                    h: T.let[T.int32] = task % kv_heads
                    at.find_owner(indptr, batch, PAGES_PER_TASK, slot, found)
                    b: T.let[T.int32] = found[0]
                    begin_page: T.let[T.int32] = indptr[b]
                    n_pages: T.let[T.int32] = indptr[b + 1] - begin_page
                    kv_len: T.let[T.int32] = T.max((n_pages - 1) * PAGE + last_page_len[b], 0)
                    first: T.let[T.int32] = (slot - begin_page // PAGES_PER_TASK - b) * BLOCKS_PER_TASK
                    last: T.let[T.int32] = T.min(first + BLOCKS_PER_TASK, (n_pages + at.VECTORS - 1) // at.VECTORS)
                    if first < last:
                        for i in T.serial(group):
                            for c in T.serial(head_dim // 16):
                                scratch_q[i, lanes(c * 16)] = q[b, h * group + i, lanes(c * 16)] * splat(sm_scale)
                        at.begin(group, head_dim, acc, top, mass)
                        for block in T.serial(last - first):
                            with T.sblock("block"):
                                T.reads()
                                T.writes()
                                page = T.sblock_alloc_buffer((at.VECTORS,), "int32")
                                start: T.let[T.int32] = first + block
                                for v in T.unroll(at.VECTORS):
                                    page[v] = values[begin_page + T.min(start * at.VECTORS + v, n_pages - 1)]
                                at.fold(
                                    tile, group // tile, head_dim, scratch_q,
                                    lambda d, v: pages[page[v], 0, h, key_at(head_dim, 0, d)[0], lanes(key_at(head_dim, 0, d)[1])],
                                    lambda t, c: pages[page[t // PAGE], 1, h, t % PAGE, lanes(c * 16)],
                                    lambda row: kv_len - start * at.BLOCK,
                                    T.min(kv_len - start * at.BLOCK, at.BLOCK), acc, top, mass, prob)
                        for i in T.serial(group):
                            @T.inline
                            def store(c, vector):  # type: ignore[no-untyped-def]
                                part[slot, h, i, lanes(c * 16)] = vector

                            @T.inline
                            def store_lse(value):  # type: ignore[no-untyped-def]
                                part_lse[slot, h, i] = value

                            at.finish(head_dim, i, acc, top, mass, scalar, store, store_lse)
            for bh in T.serial(batch * heads):
                with T.sblock("join"):
                    T.reads()
                    T.writes()
                    total = T.sblock_alloc_buffer((3,), "float32")
                    b: T.let[T.int32] = bh // heads
                    h: T.let[T.int32] = bh % heads // group
                    i: T.let[T.int32] = bh % heads % group
                    first: T.let[T.int32] = indptr[b] // PAGES_PER_TASK + b
                    count: T.let[T.int32] = (indptr[b + 1] - indptr[b] + PAGES_PER_TASK - 1) // PAGES_PER_TASK
                    total[0] = T.float32(MASKED)
                    for s in T.serial(count):
                        total[0] = T.max(total[0], part_lse[first + s, h, i])
                    total[1] = T.float32(0)
                    for d in T.serial(head_dim):
                        out[b, bh % heads, d] = T.float32(0)
                    for s in T.serial(count):
                        total[2] = T.exp2(part_lse[first + s, h, i] - total[0])
                        total[1] = total[1] + total[2]
                        for d in T.serial(head_dim):
                            out[b, bh % heads, d] = out[b, bh % heads, d] + part[first + s, h, i, d] * total[2]
                    lse[b, bh % heads] = T.float32(MASKED)
                    if total[1] > T.float32(0):
                        lse[b, bh % heads] = total[0] + T.log2(total[1])
                        for d in T.serial(head_dim):
                            out[b, bh % heads, d] = out[b, bh % heads, d] / total[1]

    return decode_paged_kernel.without_attr("global_symbol")
