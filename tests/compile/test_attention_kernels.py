"""Attention kernels against softmax attention in float64, outputs and base-2 log-sum-exp."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from aotlm_compile.kernels.cpu.attention_decode import decode_paged
from aotlm_compile.kernels.cpu.attention_prefill import (
    merge_states,
    prefill_paged,
    prefill_ragged,
)
from aotlm_compile.targets import CpuTarget
from tests.compile.kernel_runner import TARGETS, run, unwritten
from tests.compile.page_samples import empty_pages, write_slots

Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]
Result = tuple[Floats, Floats]  # out [n, heads, head_dim], lse [n, heads]

# (query heads, key/value heads, head_dim): groups of 1, 2, 3, 4 and 8.
HEADS = [(3, 3, 16), (4, 2, 64), (9, 3, 64), (4, 1, 80), (8, 1, 128)]
CASES = [(TARGETS[0], heads) for heads in HEADS]
CASES += [(target, heads) for target in TARGETS[1:] for heads in HEADS[3:4]]
for_cases = pytest.mark.parametrize(
    ("target", "heads"), CASES, ids=[f"{t.level.name}-{h}of{d}over{k}" for t, (h, k, d) in CASES]
)
WEIGHS_NOTHING = -1e4  # a log-sum-exp below this beside any real one


@dataclass(frozen=True, slots=True)
class Tokens:
    """Queries, keys and values of one sequence, float32 [n, heads, head_dim] each."""

    q: Floats
    k: Floats
    v: Floats


def random_tokens(queries: int, keys: int, heads: tuple[int, int, int], seed: int = 0) -> Tokens:
    q_heads, kv_heads, dim = heads
    rng = np.random.default_rng((queries, keys, seed))

    def normal(*shape: int) -> Floats:
        return rng.normal(0, 1, shape).astype(np.float32)

    return Tokens(
        normal(queries, q_heads, dim) * 2, normal(keys, kv_heads, dim), normal(keys, kv_heads, dim)
    )


def attention(tokens: Tokens, scale: float, causal: bool) -> tuple[Doubles, Doubles]:
    """The textbook formula; no keys give zeros and minus infinity."""
    n, heads, _ = tokens.q.shape
    keys = len(tokens.k)
    group = heads // tokens.k.shape[1]
    k = tokens.k.repeat(group, axis=1).astype(np.float64)
    v = tokens.v.repeat(group, axis=1).astype(np.float64)
    scores = np.einsum("qhd,khd->qhk", tokens.q.astype(np.float64), k) * scale
    if causal:
        hidden = np.arange(keys) > np.arange(n)[:, None] + keys - n
        scores = np.where(hidden[:, None, :], -np.inf, scores)
    if keys == 0:
        return np.zeros(tokens.q.shape), np.full((n, heads), -np.inf)
    top = scores.max(axis=-1, keepdims=True)
    weights = np.exp(scores - top)
    mass = weights.sum(axis=-1, keepdims=True)
    lse = (top + np.log(mass))[..., 0] / np.log(2)
    return np.einsum("qhk,khd->qhd", weights / mass, v), lse


def check(result: Result, expected: tuple[Doubles, Doubles], tolerance: float = 2e-6) -> None:
    seen = np.isfinite(expected[1])
    np.testing.assert_allclose(result[0], expected[0], rtol=0, atol=tolerance * 4)
    np.testing.assert_allclose(
        result[1][seen], expected[1][seen], rtol=tolerance, atol=tolerance * 4
    )
    assert (result[1][~seen] < WEIGHS_NOTHING).all()
    assert np.isfinite(result[1]).all()
    assert not result[0][~seen].any()


def int32(values: Sequence[int]) -> npt.NDArray[np.int32]:
    return np.array(values, np.int32)


def indptr(lengths: Sequence[int]) -> npt.NDArray[np.int32]:
    return int32([0, *np.cumsum(lengths).tolist()])


def empty_result(tokens: int, heads: tuple[int, int, int]) -> Result:
    return unwritten(tokens, heads[0], heads[2]), unwritten(tokens, heads[0])


def joined(arrays: Sequence[Floats]) -> Floats:
    return np.concatenate(arrays)


def call_ragged(
    target: CpuTarget, batch: Sequence[Tokens], heads: tuple[int, int, int], scale: float
) -> list[Result]:
    q_ptr, kv_ptr = indptr([len(s.q) for s in batch]), indptr([len(s.k) for s in batch])
    total = int(q_ptr[-1])
    out, lse = empty_result(total, heads)
    tensors = [joined([getattr(s, name) for s in batch]) for name in ("q", "k", "v")]
    positions, offsets = int32([0] * total), int32([0] * len(batch))
    arguments = [tensors[0], q_ptr, tensors[1], tensors[2], kv_ptr, positions, offsets, out, lse]
    run(target, prefill_ragged(*heads), *arguments, 1, 0, 1.0, 1.0, scale)
    return split(out, lse, q_ptr)


def split(out: Floats, lse: Floats, ptr: npt.NDArray[np.int32]) -> list[Result]:
    return [(out[a:b], lse[a:b]) for a, b in pairwise(ptr.tolist())]


@dataclass(frozen=True, slots=True)
class Paged:
    """Sequences in pages, in an order that says nothing about where they lie."""

    pages: Floats
    table: list[list[int]]  # of each sequence
    last: list[int]  # tokens in its last page

    @classmethod
    def of(cls, batch: Sequence[Tokens], heads: tuple[int, int, int]) -> Paged:
        counts = [-(-len(s.k) // 16) for s in batch]
        order = np.random.default_rng(0).permutation(sum(counts) + 3).tolist()
        pages = empty_pages(len(order), heads[1], heads[2])
        table = [[order.pop() for _ in range(count)] for count in counts]
        for tokens, own in zip(batch, table, strict=True):
            slots = [own[t // 16] * 16 + t % 16 for t in range(len(tokens.k))]
            write_slots(pages, int32(slots), tokens.k, tokens.v)
        last = [(len(s.k) - 1) % 16 + 1 if len(s.k) else 0 for s in batch]
        return cls(pages, table, last)

    def take(self, which: Sequence[int]) -> Paged:
        """Some of the sequences, where they lie."""
        return Paged(self.pages, [self.table[i] for i in which], [self.last[i] for i in which])

    def arguments(self) -> list[Any]:
        """pages, page indptr, page indices, last page lengths, rotary offsets."""
        ptr = indptr([len(own) for own in self.table])
        indices = int32([page for own in self.table for page in own])
        return [self.pages, ptr, indices, int32(self.last), int32([0] * len(self.last))]


def call_paged(
    target: CpuTarget,
    q: Sequence[Floats],
    paged: Paged,
    heads: tuple[int, int, int],
    scale: float,
) -> list[Result]:
    q_ptr = indptr([len(part) for part in q])
    total = int(q_ptr[-1])
    out, lse = empty_result(total, heads)
    arguments = [joined(q), q_ptr, *paged.arguments(), int32([0] * total), out, lse]
    run(target, prefill_paged(*heads), *arguments, 0, 0, 1.0, 1.0, scale)
    return split(out, lse, q_ptr)


def call_decode(
    target: CpuTarget,
    q: Sequence[Floats],
    paged: Paged,
    heads: tuple[int, int, int],
    scale: float,
) -> list[Result]:
    out, lse = empty_result(len(q), heads)
    arguments = [joined(q), *paged.arguments(), int32([0] * len(q)), out, lse]
    run(target, decode_paged(*heads), *arguments, 0, 1.0, 1.0, scale)
    return split(out, lse, indptr([1] * len(q)))


def assert_same(one: Result, other: Result) -> None:
    np.testing.assert_array_equal(one[0], other[0])
    np.testing.assert_array_equal(one[1], other[1])


@for_cases
class TestPrefillRagged:
    LENGTHS = (1, 15, 130, 16, 64, 17, 65, 1)

    def test_causal(self, target: CpuTarget, heads: tuple[int, int, int]) -> None:
        scale = heads[2] ** -0.5
        batch = [random_tokens(n, n, heads, seed) for seed, n in enumerate(self.LENGTHS)]
        results = call_ragged(target, batch, heads, scale)
        for tokens, result in zip(batch, results, strict=True):
            check(result, attention(tokens, scale, causal=True))
        for which in (0, 2, 7):
            (alone,) = call_ragged(target, [batch[which]], heads, scale)
            assert_same(alone, results[which])


# (new tokens, cached tokens) of each sequence: none cached, part of a page, whole pages.
HISTORIES = [(1, 0), (15, 1), (33, 65), (16, 16), (2, 0), (17, 33), (5, 100), (3, 64), (1, 0)]


@for_cases
class TestPrefillPaged:
    def test_every_query_sees_all_pages(
        self, target: CpuTarget, heads: tuple[int, int, int]
    ) -> None:
        scale = heads[2] ** -0.5
        batch = [random_tokens(n, m, heads) for n, m in HISTORIES]
        paged = Paged.of(batch, heads)
        results = call_paged(target, [s.q for s in batch], paged, heads, scale)
        for tokens, result in zip(batch, results, strict=True):
            check(result, attention(tokens, scale, causal=False))
        for which in (2, 4, 6):
            (alone,) = call_paged(target, [batch[which].q], paged.take([which]), heads, scale)
            assert_same(alone, results[which])

    def test_joined_with_the_new_tokens_it_is_causal_attention(
        self, target: CpuTarget, heads: tuple[int, int, int]
    ) -> None:
        """The two prefill kernels and `merge_states`, put together as the cache does."""
        scale = heads[2] ** -0.5
        whole = [random_tokens(n, m + n, heads, 7) for n, m in HISTORIES]
        new = [Tokens(s.q, s.k[len(s.k) - len(s.q) :], s.v[len(s.k) - len(s.q) :]) for s in whole]
        old = [Tokens(s.q, s.k[: -len(s.q)], s.v[: -len(s.q)]) for s in whole]
        own = call_ragged(target, new, heads, scale)
        cached = call_paged(target, [s.q for s in old], Paged.of(old, heads), heads, scale)
        (out, lse), (other, other_lse) = (
            (joined([r[0] for r in part]), joined([r[1] for r in part])) for part in (own, cached)
        )
        run(target, merge_states(heads[0], heads[2]), out, lse, other, other_lse)
        parts = split(out, lse, indptr([len(s.q) for s in whole]))
        for tokens, result in zip(whole, parts, strict=True):
            check(result, attention(tokens, scale, causal=True))


DECODED = (1, 15, 0, 16, 17, 300, 64, 65, 127, 128, 0, 129, 200, 256, 0)


@for_cases
class TestDecodePaged:
    def test_lengths(self, target: CpuTarget, heads: tuple[int, int, int]) -> None:
        scale = heads[2] ** -0.5
        batch = [random_tokens(1, m, heads) for m in DECODED]
        results = call_decode(target, [s.q for s in batch], Paged.of(batch, heads), heads, scale)
        for tokens, result in zip(batch, results, strict=True):
            check(result, attention(tokens, scale, causal=False))

    def test_a_result_does_not_depend_on_the_batch(
        self, target: CpuTarget, heads: tuple[int, int, int]
    ) -> None:
        scale = heads[2] ** -0.5
        batch = [random_tokens(1, m, heads) for m in DECODED]
        paged = Paged.of(batch, heads)
        results = call_decode(target, [s.q for s in batch], paged, heads, scale)
        for which in ([0], [5], [2], [12, 5], [9, 2, 13], list(range(len(batch)))[::-1]):
            q = [batch[i].q for i in which]
            again = call_decode(target, q, paged.take(which), heads, scale)
            for i, result in zip(which, again, strict=True):
                assert_same(result, results[i])

    def test_nothing_cached_at_all(self, target: CpuTarget, heads: tuple[int, int, int]) -> None:
        batch = [random_tokens(1, 0, heads), random_tokens(1, 0, heads)]
        paged = Paged.of(batch, heads)
        for tokens, result in zip(
            batch, call_decode(target, [s.q for s in batch], paged, heads, 1.0), strict=True
        ):
            check(result, attention(tokens, 1.0, causal=False))


@for_cases
def test_very_large_scores(target: CpuTarget, heads: tuple[int, int, int]) -> None:
    """Scores of -1000 to 1000, all exact in float32, in every kernel."""
    q_heads, kv_heads, dim = heads
    rng = np.random.default_rng(5)

    def signs(*shape: int) -> Floats:
        return rng.choice([-1.0, 1.0], shape).astype(np.float32)

    tokens = Tokens(signs(70, q_heads, dim), signs(70, kv_heads, dim), signs(70, kv_heads, dim))
    # The last keys are one query's twin and opposite: +1000 and -1000 for it.
    tokens.k[60, 0], tokens.k[61, 0] = tokens.q[65, 0], -tokens.q[65, 0]
    scale = 1000 / dim if 1000 % dim == 0 else 1024 / dim
    expected = attention(tokens, scale, causal=False)
    assert expected[1].max() > 1400
    (causal,) = call_ragged(target, [tokens], heads, scale)
    check(causal, attention(tokens, scale, causal=True), 1e-5)
    paged = Paged.of([tokens], heads)
    (prefilled,) = call_paged(target, [tokens.q], paged, heads, scale)
    check(prefilled, expected, 1e-5)
    (decoded,) = call_decode(target, [tokens.q[65:66]], paged, heads, scale)
    check(decoded, (expected[0][65:66], expected[1][65:66]), 1e-5)


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.level.name)
class TestMergeStates:
    def parts(self) -> tuple[Tokens, Tokens, Tokens]:
        whole = random_tokens(9, 40, (4, 2, 64))
        first = Tokens(whole.q, whole.k[:13], whole.v[:13])
        return whole, first, Tokens(whole.q, whole.k[13:], whole.v[13:])

    def test_two_halves(self, target: CpuTarget) -> None:
        whole, *halves = self.parts()
        (out, lse), (other, other_lse) = (
            tuple(a.astype(np.float32) for a in attention(half, 0.5, causal=False))
            for half in halves
        )
        run(target, merge_states(4, 64), out, lse, other, other_lse)
        check((out, lse), attention(whole, 0.5, causal=False), 1e-5)

    @pytest.mark.parametrize("empty", ["first", "second", "both"])
    def test_a_part_that_saw_nothing(self, target: CpuTarget, empty: str) -> None:
        """As the kernels say so: zeros, and a log-sum-exp that weighs nothing."""
        shape = (4, 2, 64)
        nothing = random_tokens(1, 0, shape)
        paged = Paged.of([nothing], shape)
        ((zeros, low),) = call_decode(target, [nothing.q], paged, shape, 1.0)
        tokens = random_tokens(1, 40, shape)
        real = tuple(a.astype(np.float32) for a in attention(tokens, 0.5, causal=False))
        first = (
            (zeros.copy(), low.copy()) if empty != "second" else (real[0].copy(), real[1].copy())
        )
        second = (zeros, low) if empty != "first" else real
        out, lse = first
        run(target, merge_states(4, 64), out, lse, *second)
        wanted = attention(nothing if empty == "both" else tokens, 0.5, causal=False)
        check((out, lse), wanted)
