"""Rotary positions, and moving keys and values in and out of pages, against plain NumPy.

Pages are read and written by `page_samples`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from aotlm_compile.kernels.cpu import pages, rope
from aotlm_compile.targets import CpuTarget
from tests.compile.kernel_runner import TARGETS, run, unwritten
from tests.compile.page_samples import empty_pages, read_slots, write_slots

Floats = npt.NDArray[np.float32]

HEAD_DIMS = (16, 64, 80, 128)
KV_HEADS = 3
# Plain C-like loops: one level is enough for all but one size.
CASES = [(TARGETS[0], dim) for dim in HEAD_DIMS] + [(target, 80) for target in TARGETS[1:]]
for_cases = pytest.mark.parametrize(
    ("target", "head_dim"), CASES, ids=[f"{t.level.name}-{d}" for t, d in CASES]
)


def normal(seed: int, *shape: int) -> Floats:
    return np.random.default_rng(seed).normal(0, 1, shape).astype(np.float32)


def int32(values: Any) -> npt.NDArray[np.int32]:
    return np.array(values, np.int32)


@for_cases
class TestRope:
    def frequencies(self, head_dim: int) -> npt.NDArray[np.float64]:
        return np.power(500000.0, -np.arange(0, head_dim, 2) / head_dim)

    def test_table(self, target: CpuTarget, head_dim: int) -> None:
        table = unwritten(8192, 2, head_dim // 2)
        frequencies = self.frequencies(head_dim)
        run(target, rope.rotary_table(8192, head_dim // 2), frequencies, table)
        angles = np.arange(8192)[:, None] * frequencies
        expected = np.stack([np.cos(angles), np.sin(angles)], axis=1)
        np.testing.assert_allclose(table, expected, rtol=0, atol=1e-7)

    @pytest.mark.parametrize("n", [1, 7])
    def test_split_rotary(self, target: CpuTarget, head_dim: int, n: int) -> None:
        heads, half = 6, head_dim // 2
        qkv = normal(n, n, heads + 2 * KV_HEADS, head_dim)
        position = int32([0, 99, 3, 57, 57, 1, 98])[-n:]
        angles = np.arange(100)[:, None] * self.frequencies(head_dim)
        table = np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)
        q = unwritten(n, heads, head_dim)
        k, v = unwritten(n, KV_HEADS, head_dim), unwritten(n, KV_HEADS, head_dim)
        kernel = rope.split_rotary(heads, KV_HEADS, head_dim, 100)
        run(target, kernel, qkv, position, q, k, v, table)
        # A pair of features as a complex number, turned by the angle.
        turned = np.exp(1j * angles[position])[:, None, :]
        pairs = qkv[..., :half] + 1j * qkv[..., half:].astype(np.complex128)
        expected = np.concatenate([(pairs * turned).real, (pairs * turned).imag], axis=-1)
        np.testing.assert_allclose(q, expected[:, :heads], atol=2e-6)
        np.testing.assert_allclose(k, expected[:, heads : heads + KV_HEADS], atol=2e-6)
        np.testing.assert_array_equal(v, qkv[:, heads + KV_HEADS :])


@for_cases
class TestPages:
    def test_append(self, target: CpuTarget, head_dim: int) -> None:
        cache = empty_pages(4, KV_HEADS, head_dim)
        before = cache.copy()
        k, v = normal(1, 6, KV_HEADS, head_dim), normal(2, 6, KV_HEADS, head_dim)
        slots = int32([35, 0, -1, 63, 16, 31])
        run(target, pages.append(KV_HEADS, head_dim), cache, k, v, slots)
        wanted = before.copy()
        kept = slots >= 0
        write_slots(wanted, slots[kept], k[kept], v[kept])
        np.testing.assert_array_equal(cache, wanted)

    def test_copy_single_page(self, target: CpuTarget, head_dim: int) -> None:
        for length in (1, 7, 16):
            cache = normal(3, 4, 2, KV_HEADS, 16, head_dim)
            wanted = cache.copy()
            slots = np.arange(length)
            write_slots(wanted, 3 * 16 + slots, *read_slots(cache, 1 * 16 + slots))
            run(target, pages.copy_single_page(KV_HEADS, head_dim), cache, 1, 3, length)
            np.testing.assert_array_equal(cache, wanted)

    def test_compact_copy(self, target: CpuTarget, head_dim: int) -> None:
        """Two sequences, the first moves nothing; sources and targets overlap."""
        cache = normal(4, 4, 2, KV_HEADS, 16, head_dim)
        wanted = cache.copy()
        moves = int32([[20, 22, 40, 63], [19, 20, 21, 0]])
        for source, destination in moves.T:
            write_slots(wanted, int32([destination]), *read_slots(wanted, int32([source])))
        kernel = pages.compact_copy(KV_HEADS, head_dim)
        run(target, kernel, cache, int32([0, 0, 4]), moves, 2)
        np.testing.assert_array_equal(cache, wanted)

    def test_debug_get_kv(self, target: CpuTarget, head_dim: int) -> None:
        cache = normal(5, 4, 2, KV_HEADS, 16, head_dim)
        slots = int32([63, 0, 17, 17, 31])
        k, v = unwritten(2, 5, KV_HEADS, head_dim), unwritten(2, 5, KV_HEADS, head_dim)
        other = k[0].copy()
        run(target, pages.debug_get_kv(2, KV_HEADS, head_dim), cache, slots, k, v, 1)
        keys, values = read_slots(cache, slots)
        np.testing.assert_array_equal(k[1], keys)
        np.testing.assert_array_equal(v[1], values)
        np.testing.assert_array_equal(k[0], other)
