"""Norms, activations and int8 quantization against NumPy in float64."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from aotlm_compile.kernels.cpu import activation as kernels
from aotlm_compile.targets import CpuTarget
from tests.compile.kernel_runner import TARGETS, run, unwritten

Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]

EPS = 1e-5
ROWS = (1, 3, 5, 17)
# Odd numbers of features on every level would only compile the same text again.
CASES = [
    (target, features)
    for target in TARGETS
    for features in ((32, 33, 77, 576, 1000, 1536) if target is TARGETS[0] else (77, 576))
]
for_cases = pytest.mark.parametrize(
    ("target", "features"), CASES, ids=[f"{t.level.name}-{f}" for t, f in CASES]
)


@dataclass(frozen=True, slots=True)
class Quantized:
    """The int8 activation of some rows, taken apart."""

    codes: npt.NDArray[np.int8]  # [n, groups, 32]
    steps: Floats  # [n, groups]
    sums: Floats  # [n, groups]
    indices: npt.NDArray[np.int64]  # [n, outliers]
    outliers: Floats  # [n, outliers]

    def values(self) -> Doubles:
        """What the rows stand for: float64 [n, groups * 32]."""
        n = len(self.codes)
        with np.errstate(invalid="ignore"):  # infinity times 0
            groups = self.codes.astype(np.float64) * self.steps[:, :, None]
        flat = groups.reshape(n, -1)
        for row in range(n):
            for index, value in zip(self.indices[row], self.outliers[row], strict=True):
                flat[row, index] += value
        return flat


def call_quantizing(target: CpuTarget, kernel: Any, features: int, *inputs: Floats) -> Quantized:
    n, groups = len(inputs[0]), -(-features // 32)
    outliers = kernels.outliers_of(features)
    codes = unwritten(n, groups * 8, 4, dtype="int8")
    scales = unwritten(n, groups + outliers, 2)
    run(target, kernel, *inputs, codes, scales)
    groups_part, outlier_part = scales[:, :groups], scales[:, groups:]
    # Whatever the values: the matrix product reads the weights these name.
    assert ((outlier_part[..., 0] >= 0) & (outlier_part[..., 0] < features)).all()
    return Quantized(
        codes.reshape(n, groups, 32),
        groups_part[..., 0],
        groups_part[..., 1],
        outlier_part[..., 0].astype(np.int64),
        outlier_part[..., 1],
    )


def check_quantized(q: Quantized, expected: Doubles) -> None:
    """`expected` float64 [n, features]; rows whose largest values differ from each other."""
    n, features = expected.shape
    rest = expected.copy()
    for row in range(n):
        largest = np.sort(np.abs(expected[row]))[::-1][: q.indices.shape[1]]
        pulled = expected[row, q.indices[row]]
        np.testing.assert_allclose(np.abs(pulled), largest, rtol=1e-5)
        np.testing.assert_allclose(q.outliers[row], pulled, rtol=1e-5, atol=1e-30)
        rest[row, q.indices[row]] = 0
    groups = q.codes.shape[1]
    rest = np.pad(rest, ((0, 0), (0, groups * 32 - features))).reshape(n, groups, 32)
    steps = np.abs(rest).max(axis=-1) / 127
    np.testing.assert_allclose(q.steps, steps, rtol=1e-5)
    error = np.abs(q.codes * q.steps[:, :, None].astype(np.float64) - rest)
    assert (error <= steps[:, :, None] * (0.5 + 1e-3)).all()
    assert (q.codes.reshape(n, -1)[:, features:] == 0).all()
    sums = q.codes.astype(np.int64).sum(axis=-1).astype(np.float32)
    np.testing.assert_array_max_ulp(q.sums, q.steps * sums, 1)


def normal(*shape: int) -> Floats:
    return np.random.default_rng(shape).normal(0, 2, shape).astype(np.float32)


def rms_norm(x: Floats, weight: Floats) -> Doubles:
    wide = x.astype(np.float64)
    result: Doubles = wide / np.sqrt((wide**2).mean(axis=-1, keepdims=True) + EPS) * weight
    return result


def silu_mul(x: Floats) -> Doubles:
    gate, up = np.split(x.astype(np.float64), 2, axis=-1)
    result: Doubles = gate / (1 + np.exp(-gate)) * up
    return result


@for_cases
class TestFloat:
    def test_rms_norm(self, target: CpuTarget, features: int) -> None:
        weight = np.random.default_rng(1).uniform(0.5, 1.5, features).astype(np.float32)
        for n in ROWS:
            x, y = normal(n, features), unwritten(n, features)
            run(target, kernels.rms_norm(features, EPS), x, weight, y)
            np.testing.assert_allclose(y, rms_norm(x, weight), rtol=3e-6, atol=1e-7)

    def test_silu_mul(self, target: CpuTarget, features: int) -> None:
        for n in ROWS:
            x, y = normal(n, 2 * features) * 3, unwritten(n, features)
            run(target, kernels.silu_mul(features), x, y)
            np.testing.assert_allclose(y, silu_mul(x), rtol=3e-6, atol=1e-7)

    def test_silu_mul_of_large_gates(self, target: CpuTarget, features: int) -> None:
        gates = np.array([-3e38, -1e4, -200, -89, -88, -87, 0, 88, 200, 1e4], np.float32)
        x, y = np.ones((len(gates), 2 * features), np.float32), unwritten(len(gates), features)
        x[:, :features] = gates[:, None]
        run(target, kernels.silu_mul(features), x, y)
        expected = np.where(gates > -20, gates, 0)[:, None].repeat(features, axis=1)
        np.testing.assert_allclose(y, expected, rtol=1e-6, atol=1e-30)


@for_cases
class TestQuantized:
    def test_quantize(self, target: CpuTarget, features: int) -> None:
        for n in ROWS:
            x = normal(n, features)
            q = call_quantizing(target, kernels.quantize(features), features, x)
            check_quantized(q, x.astype(np.float64))
            for row, index in enumerate(q.indices):
                np.testing.assert_array_equal(q.outliers[row], x[row, index])

    def test_rms_norm_quantize(self, target: CpuTarget, features: int) -> None:
        weight = np.random.default_rng(1).uniform(0.5, 1.5, features).astype(np.float32)
        kernel = kernels.rms_norm_quantize(features, EPS)
        for n in ROWS:
            x = normal(n, features)
            q = call_quantizing(target, kernel, features, x, weight)
            check_quantized(q, rms_norm(x, weight))

    def test_silu_mul_quantize(self, target: CpuTarget, features: int) -> None:
        for n in ROWS:
            x = normal(n, 2 * features)
            q = call_quantizing(target, kernels.silu_mul_quantize(features), features, x)
            check_quantized(q, silu_mul(x))

    def test_a_row_alone_is_quantized_as_among_others(
        self, target: CpuTarget, features: int
    ) -> None:
        x = normal(17, features)
        together = call_quantizing(target, kernels.quantize(features), features, x)
        alone = call_quantizing(target, kernels.quantize(features), features, x[11:12])
        np.testing.assert_array_equal(together.codes[11], alone.codes[0])
        np.testing.assert_array_equal(together.steps[11], alone.steps[0])
        np.testing.assert_array_equal(together.outliers[11], alone.outliers[0])

    def test_zeros(self, target: CpuTarget, features: int) -> None:
        q = call_quantizing(target, kernels.quantize(features), features, normal(5, features) * 0)
        assert not q.values().any()
        assert not q.sums.any()

    def test_all_equal(self, target: CpuTarget, features: int) -> None:
        x = np.repeat(np.array([[3.5], [-0.25]], np.float32), features, axis=1)
        q = call_quantizing(target, kernels.quantize(features), features, x)
        np.testing.assert_allclose(q.values()[:, :features], x, rtol=1e-6)
        assert all(len(set(row)) == len(row) for row in q.indices.tolist())

    def test_one_huge_value(self, target: CpuTarget, features: int) -> None:
        x = normal(3, features)
        x[:, 5] = [1e30, -3e38, 1e-30]
        q = call_quantizing(target, kernels.quantize(features), features, x)
        check_quantized(q, x.astype(np.float64))
        if features > 32:
            others = np.delete(q.values()[:, :features] - x, 5, axis=1)
            assert np.abs(others).max() < 0.05

    def test_values_too_small_for_a_step(self, target: CpuTarget, features: int) -> None:
        x = normal(4, features) * np.float32(1e-39)
        q = call_quantizing(target, kernels.quantize(features), features, x)
        assert np.abs(q.values()).max() < 1e-36
        assert np.abs(q.sums).max() < 1e-28


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.level.name)
@pytest.mark.parametrize("features", [32, 77, 576])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
class TestNotFinite:
    """One bad value must not vanish: it shows in its row, and in no other."""

    def check(self, q: Quantized) -> None:
        finite = np.isfinite(q.values()).all(axis=1) & np.isfinite(q.sums).all(axis=1)
        assert finite.tolist() == [True, False, True, True]

    def test_quantize(self, target: CpuTarget, features: int, bad: float) -> None:
        for place in (0, 17, features - 1):
            x = normal(4, features)
            x[1, place] = bad
            self.check(call_quantizing(target, kernels.quantize(features), features, x))

    def test_more_of_them_than_outliers(self, target: CpuTarget, features: int, bad: float) -> None:
        x = normal(4, features)
        x[1, ::3] = bad
        self.check(call_quantizing(target, kernels.quantize(features), features, x))

    def test_rms_norm_quantize(self, target: CpuTarget, features: int, bad: float) -> None:
        x, weight = normal(4, features), np.ones(features, np.float32)
        x[1, features - 1] = bad
        kernel = kernels.rms_norm_quantize(features, EPS)
        self.check(call_quantizing(target, kernel, features, x, weight))

    @pytest.mark.parametrize("half", [0, 1])
    def test_silu_mul_quantize(
        self, target: CpuTarget, features: int, bad: float, half: int
    ) -> None:
        x = np.abs(normal(4, 2 * features))
        x[1, half * features + features - 1] = bad
        self.check(call_quantizing(target, kernels.silu_mul_quantize(features), features, x))


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.level.name)
def test_nan_goes_through_the_float_kernels(target: CpuTarget) -> None:
    x, y = normal(4, 77), unwritten(4, 77)
    x[1, 50] = np.nan
    run(target, kernels.rms_norm(77, EPS), x, np.ones(77, np.float32), y)
    assert np.isnan(y).sum(axis=1).tolist() == [0, 77, 0, 0]
    x, y = normal(4, 2 * 77), unwritten(4, 77)
    x[1, 50] = x[2, 77 + 3] = x[3, 76] = np.nan
    run(target, kernels.silu_mul(77), x, y)
    assert [np.flatnonzero(np.isnan(row)).tolist() for row in y] == [[], [50], [3], [76]]
