"""Attention over blocks of keys with a running maximum and sum (Milakov and Gimelshein 2018).

A task owns some query rows (a row is one query head of one token) and one key/value head, and
folds in blocks of 64 keys. Its state, in scratch memory:
    query  float32 [rows, head_dim]   scaled by sm_scale
    out    float32 [rows, head_dim]   sum of p * value so far
    top    float32 [rows]             running maximum of the scores
    mass   float32 [rows, 16]         running sum of p, one partial sum a lane
    prob   float32 [3, 64]            p of the rows being folded
Rows are folded `tile` at a time, at most 3: 3 rows x 4 vectors of scores fill 12 registers,
enough independent sums to keep two FMA units busy, and the scratch of a tile stays below the
1024 bytes up to which TVM keeps buffers in registers.

The cache joins results by their log-sum-exp in base 2, so that is what `finish` writes.
"""
# fmt: off

from __future__ import annotations

from tvm.script import tirx as T

from aotlm_compile.kernels.cpu.vector import (
    LOG2E,
    MASKED,
    exp,
    fma,
    lanes,
    reduce_add,
    reduce_max,
    splat,
    splat_f32,
)

BLOCK = 64  # keys folded at a time: 4 vectors, 4 pages
VECTORS = BLOCK // 16


def tile_for(rows: int) -> int:
    """How many rows to fold at a time when a task has exactly `rows`."""
    return next(tile for tile in (3, 2, 1) if rows % tile == 0)


@T.inline
def find_owner(indptr, batch, size, slot, found):  # type: ignore[no-untyped-def]
    """found[0] = the sequence that `slot` belongs to, in a ragged batch cut into pieces of `size`.

    Sequence b owns slots indptr[b] // size + b and up to the next one's: always enough for its
    pieces, so that indptr[batch] // size + batch slots hold every piece of the batch.
    """
    found[0] = 0
    for b in T.serial(1, batch):
        if indptr[b] // size + b <= slot:
            found[0] = b


@T.inline
def begin(rows, head_dim, out, top, mass):  # type: ignore[no-untyped-def]
    """Nothing folded yet."""
    for r in T.serial(rows):
        top[r] = T.float32(MASKED)
        mass[r, lanes(0)] = splat_f32(0)
        for c in T.serial(head_dim // 16):
            out[r, lanes(c * 16)] = splat_f32(0)


@T.inline
def _scores(tile, head_dim, r0, query, key, s):  # type: ignore[no-untyped-def]
    for i in T.unroll(tile):
        for v in T.unroll(VECTORS):
            s[i, v, lanes(0)] = splat_f32(0)
    for d in T.serial(head_dim):
        for i in T.unroll(tile):
            for v in T.unroll(VECTORS):
                s[i, v, lanes(0)] = fma(splat(query[r0 + i, d]), key(d, v), s[i, v, lanes(0)])


@T.inline
def _softmax(tile, head_dim, r0, visible, s, out, top, mass, prob, scalar):  # type: ignore[no-untyped-def]
    for i in T.unroll(tile):
        for v in T.unroll(VECTORS):
            s[i, v, lanes(0)] = T.Select(lanes(v * 16) < splat(visible(r0 + i)), s[i, v, lanes(0)], splat_f32(MASKED))
        scalar[0] = reduce_max(T.max(
            T.max(s[i, 0, lanes(0)], s[i, 1, lanes(0)]), T.max(s[i, 2, lanes(0)], s[i, 3, lanes(0)])))
        if scalar[0] > top[r0 + i]:
            scalar[1] = T.exp(top[r0 + i] - scalar[0])
            mass[r0 + i, lanes(0)] = mass[r0 + i, lanes(0)] * splat(scalar[1])
            for c in T.serial(head_dim // 16):
                out[r0 + i, lanes(c * 16)] = out[r0 + i, lanes(c * 16)] * splat(scalar[1])
            top[r0 + i] = scalar[0]
        for v in T.unroll(VECTORS):
            s[i, v, lanes(0)] = exp(s[i, v, lanes(0)] - splat(top[r0 + i]))
            prob[i, lanes(v * 16)] = s[i, v, lanes(0)]
        mass[r0 + i, lanes(0)] = mass[r0 + i, lanes(0)] + (
            (s[i, 0, lanes(0)] + s[i, 1, lanes(0)]) + (s[i, 2, lanes(0)] + s[i, 3, lanes(0)]))


@T.inline
def _add_values(tile, head_dim, r0, count, value, out, prob):  # type: ignore[no-untyped-def]
    for c4 in T.serial(head_dim // 64):
        with T.sblock("values"):
            T.reads()
            T.writes()
            o = T.sblock_alloc_buffer((tile, 4, 16), "float32")
            for i in T.unroll(tile):
                for c in T.unroll(4):
                    o[i, c, lanes(0)] = out[r0 + i, lanes(c4 * 64 + c * 16)]
            for t in T.serial(count):
                for i in T.unroll(tile):
                    for c in T.unroll(4):
                        o[i, c, lanes(0)] = fma(splat(prob[i, t]), value(t, c4 * 4 + c), o[i, c, lanes(0)])
            for i in T.unroll(tile):
                for c in T.unroll(4):
                    out[r0 + i, lanes(c4 * 64 + c * 16)] = o[i, c, lanes(0)]
    for c in T.serial(head_dim % 64 // 16):
        with T.sblock("values_rest"):
            T.reads()
            T.writes()
            o = T.sblock_alloc_buffer((tile, 16), "float32")
            for i in T.unroll(tile):
                o[i, lanes(0)] = out[r0 + i, lanes(head_dim // 64 * 64 + c * 16)]
            for t in T.serial(count):
                for i in T.unroll(tile):
                    o[i, lanes(0)] = fma(splat(prob[i, t]), value(t, head_dim // 64 * 4 + c), o[i, lanes(0)])
            for i in T.unroll(tile):
                out[r0 + i, lanes(head_dim // 64 * 64 + c * 16)] = o[i, lanes(0)]


@T.inline
def fold(tile, tiles, head_dim, query, key, value, visible, count, out, top, mass, prob):  # type: ignore[no-untyped-def]
    """Folds one block of keys into `tiles` * `tile` rows.

    key(d, v): feature d of keys 16 v .. 16 v + 15; value(t, c): features 16 c .. of key t;
    visible(row): how many of the block's keys the row may see (0 or less hides all);
    count: keys of the block that exist.
    """
    for r in T.serial(tiles):
        with T.sblock("fold"):
            T.reads()
            T.writes()
            s = T.sblock_alloc_buffer((tile, VECTORS, 16), "float32")
            scalar = T.sblock_alloc_buffer((2,), "float32")
            _scores(tile, head_dim, r * tile, query, key, s)
            _softmax(tile, head_dim, r * tile, visible, s, out, top, mass, prob, scalar)
            _add_values(tile, head_dim, r * tile, count, value, out, prob)


@T.inline
def finish(head_dim, r, out, top, mass, scalar, store, store_lse):  # type: ignore[no-untyped-def]
    """Writes row r: store(vector index, float32x16) and store_lse(float32).

    A row that saw no key gives zeros and a log-sum-exp that weighs nothing.
    """
    scalar[0] = reduce_add(mass[r, lanes(0)])
    if top[r] > T.float32(MASKED):
        for c in T.serial(head_dim // 16):
            store(c, out[r, lanes(c * 16)] * splat(T.float32(1) / scalar[0]))
        store_lse(top[r] * T.float32(LOG2E) + T.log2(scalar[0]))
    else:
        for c in T.serial(head_dim // 16):
            store(c, splat_f32(0))
        store_lse(T.float32(MASKED))
