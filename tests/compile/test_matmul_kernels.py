"""Matrix products and picked rows against NumPy in float64, on every level of this machine."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Literal

import numpy as np
import numpy.typing as npt
import pytest

from aotlm_compile.checkpoint.base import GroupedWeight
from aotlm_compile.kernels.cpu import rows
from aotlm_compile.kernels.cpu.activation import outliers_of
from aotlm_compile.kernels.cpu.matmul_dense import matmul_dense
from aotlm_compile.kernels.cpu.matmul_grouped import matmul_grouped
from aotlm_compile.layers.linear import DENSE_TILE, GROUPED_TILE
from aotlm_compile.quantize import q4f32_1
from aotlm_compile.quantize.packing import pack_codes, pack_dense, pack_scales
from aotlm_compile.targets import CpuTarget
from tests.compile.kernel_runner import TARGETS, run, unwritten

Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]

COUNTS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 19)
MOST = max(COUNTS)
Bits = Literal[4, 8]
BITS: tuple[Bits, Bits] = (4, 8)
for_targets = pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.level.name)


@dataclass(frozen=True, slots=True)
class Activation:
    """Int8 rows made here, by the layout that `kernels.cpu.activation` describes."""

    codes: npt.NDArray[np.int8]  # [n, groups * 8, 4]
    scales: Floats  # [n, groups + outliers, 2]
    values: Doubles  # [n, groups * 32]

    def take(self, which: slice) -> Activation:
        return Activation(self.codes[which], self.scales[which], self.values[which])


def activation(codes: npt.NDArray[np.int8], steps: Floats, inputs: int) -> Activation:
    """codes [n, groups, 32], steps [n, groups]; outliers are added where the kernel has some."""
    n, groups = steps.shape
    count = outliers_of(inputs)
    rng = np.random.default_rng(n)
    values = (codes.astype(np.float64) * steps[:, :, None]).reshape(n, -1)
    scales = np.empty((n, groups + count, 2), np.float32)
    scales[:, :groups, 0] = steps
    scales[:, :groups, 1] = steps * codes.sum(axis=-1, dtype=np.int64)
    for row in range(n):
        where = rng.choice(inputs, count, replace=False)
        scales[row, groups:, 0] = where
        scales[row, groups:, 1] = rng.normal(0, 20, count)
        values[row, where] += scales[row, groups:, 1]
    return Activation(codes.reshape(n, groups * 8, 4), scales, values)


@cache
def random_activation(inputs: int) -> Activation:
    rng = np.random.default_rng(inputs)
    groups = -(-inputs // 32)
    codes = rng.integers(-127, 128, (MOST, groups * 32)).astype(np.int8)
    codes[:, inputs:] = 0
    steps = rng.uniform(0.001, 0.05, (MOST, groups)).astype(np.float32)
    return activation(codes.reshape(MOST, groups, 32), steps, inputs)


@cache
def weight(outputs: int, inputs: int, bits: Bits) -> GroupedWeight:
    rng = np.random.default_rng((outputs, inputs, bits))
    if bits == 4:
        return q4f32_1.quantize(rng.normal(0, 0.1, (outputs, inputs)).astype(np.float32))
    shape = (outputs, -(-inputs // 32))
    return GroupedWeight(
        rng.integers(0, 256, (outputs, shape[1] * 32)).astype(np.uint8),
        rng.uniform(0.001, 0.01, shape).astype(np.float16),
        rng.uniform(-1, 0.2, shape).astype(np.float16),
        bits=8,
    )


def dequantized(w: GroupedWeight) -> Doubles:
    n, cols = w.codes.shape
    groups = w.codes.reshape(n, -1, 32).astype(np.float64) * w.scale[:, :, None]
    return (groups + w.minimum[:, :, None]).reshape(n, cols)


def call_grouped(
    target: CpuTarget, w: GroupedWeight, x: Activation, inputs: int, extra: Floats | None = None
) -> Floats:
    outputs = len(w.codes)
    kernel = matmul_grouped(
        outputs, inputs, w.bits, extra is not None, target.level.dot, GROUPED_TILE
    )
    y = unwritten(len(x.codes), outputs)
    more = [] if extra is None else [extra]
    run(target, kernel, x.codes, x.scales, pack_codes(w.codes, w.bits), pack_scales(w), *more, y)
    return y


def residual(outputs: int) -> Floats:
    return np.random.default_rng(3).normal(0, 1, (MOST, outputs)).astype(np.float32)


# (outputs, inputs): whole blocks, none whole, one group (which has no outliers), many outliers.
SHAPES = [(64, 576), (37, 77), (16, 32), (20, 1100)]
GROUPED: list[tuple[CpuTarget, int, int, Bits, bool]] = [
    (target, *shape, bits, extra)
    for target in TARGETS
    for shape in SHAPES[: 4 if target is TARGETS[0] else 2]
    for bits in BITS
    for extra in (False, True)
    # The rest of the combinations would say the same again.
    if extra is (shape == SHAPES[0]) or (target is TARGETS[0] and shape in SHAPES[:2])
]
GROUPED_IDS = [f"{t.level.name}-{o}x{i}-{b}bit-{'+' if e else '='}" for t, o, i, b, e in GROUPED]


@pytest.mark.parametrize(
    ("target", "outputs", "inputs", "bits", "with_extra"), GROUPED, ids=GROUPED_IDS
)
def test_matmul_grouped(
    target: CpuTarget, outputs: int, inputs: int, bits: Bits, with_extra: bool
) -> None:
    w, x = weight(outputs, inputs, bits), random_activation(inputs)
    extra = residual(outputs) if with_extra else None
    matrix = dequantized(w)
    expected = x.values @ matrix.T + (0 if extra is None else extra)
    scale = np.abs(x.values) @ np.abs(matrix).T + 1
    whole = call_grouped(target, w, x, inputs, extra)
    assert (np.abs(whole - expected) / scale).max() < 5e-7
    # However many rows share the call, a row's result is the same, bit for bit.
    for n in COUNTS:
        few = call_grouped(
            target, w, x.take(slice(n)), inputs, None if extra is None else extra[:n]
        )
        np.testing.assert_array_equal(few, whole[:n])
    for row in (6, MOST - 1):
        one = slice(row, row + 1)
        alone = call_grouped(target, w, x.take(one), inputs, None if extra is None else extra[one])
        np.testing.assert_array_equal(alone, whole[one])


@pytest.mark.parametrize("bits", [4, 8])
def test_levels_agree(bits: Bits) -> None:
    outputs, inputs = SHAPES[1]
    w, x = weight(outputs, inputs, bits), random_activation(inputs)
    first, *others = (call_grouped(target, w, x, inputs) for target in TARGETS)
    for other in others:
        np.testing.assert_allclose(other, first, rtol=1e-5, atol=1e-4)


@for_targets
@pytest.mark.parametrize("bits", [4, 8])
def test_extreme_codes_do_not_saturate(target: CpuTarget, bits: Bits) -> None:
    """Integers as large as they get, in a sum that float32 holds exactly."""
    outputs, inputs = 37, 77
    largest = 2**bits - 1
    codes = np.full((outputs, 96), largest, np.uint8)
    codes[1::3, ::2] = 0
    codes[2::3, ::4] = largest // 2 + 1
    ones = np.ones((outputs, 3), np.float16)
    w = GroupedWeight(codes, ones, ones * 0, bits=bits)
    signs = np.array([[1], [-1], [1], [1], [-1]]) * np.ones((5, 96), np.int64)
    signs[2, 1::2] = -1
    signs[3, ::3] = -1
    inputs_codes = (127 * signs).astype(np.int8)
    scales = np.zeros((5, 3 + outliers_of(inputs), 2), np.float32)
    scales[:, :3, 0] = 1
    x = Activation(inputs_codes.reshape(5, 24, 4), scales, inputs_codes.astype(np.float64))
    expected = 127 * signs @ codes.astype(np.int64).T
    for n in (1, 5):
        y = call_grouped(target, w, x.take(slice(n)), inputs)
        np.testing.assert_array_equal(y, expected[:n])


@for_targets
@pytest.mark.parametrize("place", ["step", "outlier"])
def test_nan_shows_in_its_row_alone(target: CpuTarget, place: str) -> None:
    outputs, inputs = SHAPES[1]
    x = random_activation(inputs).take(slice(5))
    scales = x.scales.copy()
    scales[2, 1 if place == "step" else 4, 0 if place == "step" else 1] = np.nan
    broken = Activation(x.codes, scales, x.values)
    y = call_grouped(target, weight(outputs, inputs, 4), broken, inputs)
    assert np.isnan(y).all(axis=1).tolist() == [False, False, True, False, False]
    assert np.isnan(y).any(axis=1).tolist() == [False, False, True, False, False]


DENSE = [
    (target, *shape, extra)
    for target in TARGETS
    for shape in SHAPES[:2]
    for extra in (False, True)
    if target is TARGETS[0] or extra is (shape == SHAPES[0])
]


@pytest.mark.parametrize(
    ("target", "outputs", "inputs", "with_extra"),
    DENSE,
    ids=[f"{t.level.name}-{o}x{i}-{'+' if e else '='}" for t, o, i, e in DENSE],
)
def test_matmul_dense(target: CpuTarget, outputs: int, inputs: int, with_extra: bool) -> None:
    rng = np.random.default_rng(inputs)
    w = rng.normal(0, 0.1, (outputs, inputs)).astype(np.float32)
    x = rng.normal(0, 1, (MOST, inputs)).astype(np.float32)
    extra = residual(outputs)
    kernel = matmul_dense(outputs, inputs, with_extra, DENSE_TILE)

    def call(which: slice) -> Floats:
        y = unwritten(len(x[which]), outputs)
        more = [extra[which]] if with_extra else []
        run(target, kernel, x[which], pack_dense(w), *more, y)
        return y

    whole = call(slice(None))
    expected = x.astype(np.float64) @ w.T.astype(np.float64) + (extra if with_extra else 0)
    np.testing.assert_allclose(whole, expected, rtol=1e-5, atol=1e-5)
    for n in COUNTS:
        np.testing.assert_array_equal(call(slice(n)), whole[:n])
    np.testing.assert_array_equal(call(slice(6, 7)), whole[6:7])


for_widths = pytest.mark.parametrize(
    ("target", "features"),
    [(TARGETS[0], 64), *((target, 77) for target in TARGETS)],
    ids=lambda value: str(value) if isinstance(value, int) else value.level.name,
)
IDS = np.array([0, 15, 16, 41, 3, 41], np.int32)  # of 42 rows


@for_widths
@pytest.mark.parametrize("bits", [4, 8])
def test_embed_grouped(target: CpuTarget, features: int, bits: Bits) -> None:
    w = weight(42, features, bits)
    y = unwritten(len(IDS), features)
    kernel = rows.embed_grouped(42, features, bits)
    run(target, kernel, IDS, pack_codes(w.codes, bits), pack_scales(w), y)
    np.testing.assert_allclose(y, dequantized(w)[IDS, :features], rtol=1e-6, atol=1e-6)


@for_widths
def test_embed_dense(target: CpuTarget, features: int) -> None:
    w = np.random.default_rng(0).normal(0, 1, (42, features)).astype(np.float32)
    y = unwritten(len(IDS), features)
    run(target, rows.embed_dense(42, features), IDS, pack_dense(w), y)
    np.testing.assert_array_equal(y, w[IDS])


@for_widths
def test_take_rows(target: CpuTarget, features: int) -> None:
    x = np.random.default_rng(0).normal(0, 1, (9, features)).astype(np.float32)
    which = np.array([8, 0, 0, 5], np.int32)
    y = unwritten(len(which), features)
    run(target, rows.take_rows(features), x, which, y)
    np.testing.assert_array_equal(y, x[which])
