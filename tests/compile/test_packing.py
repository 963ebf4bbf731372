"""Weight layouts and quantization schemes, unpacked again by the words of the kernels' docs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import gguf
import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
from tvm.relax.frontend import nn

from aotlm.errors import CheckpointError, CompileError
from aotlm_compile.checkpoint.base import Checkpoint, DenseWeight, GroupedWeight, Weight
from aotlm_compile.checkpoint.gguf import GgufCheckpoint
from aotlm_compile.layers.weights import Matrix, WeightBook
from aotlm_compile.quantize import SCHEMES, default_scheme, q4f32_1, scheme_named
from aotlm_compile.quantize.packing import pack_codes, pack_dense, pack_scales, stack
from tests.compile.gguf_samples import write_llama

Array = npt.NDArray[Any]
Floats = npt.NDArray[np.float32]

SHAPES = [(16, 32), (1, 32), (17, 64), (48, 96), (37, 160)]
for_shapes = pytest.mark.parametrize(("rows", "cols"), SHAPES)


def unpacked_code(packed: Array, row: int, col: int, bits: int) -> int:
    """One code, found by the words of `kernels.cpu.matmul_grouped`."""
    vector, j = divmod(col % 32, 4)
    at = packed[row // 16, col // 32]
    byte = 4 * (row % 16) + j
    if bits == 8:
        return int(at[vector, byte])
    return int(at[vector % 4, byte] >> (4 * (vector // 4))) & 15


def unpacked(packed: Array, scales: Array, rows: int, bits: int) -> Floats:
    """The matrix that codes and scales stand for, float32 [rows, groups * 32]."""
    groups = packed.shape[1]
    matrix = np.empty((rows, groups * 32), np.float32)
    for row in range(rows):
        for col in range(groups * 32):
            scale, minimum = scales[row // 16, col // 32, :, row % 16].astype(np.float32)
            matrix[row, col] = np.float32(unpacked_code(packed, row, col, bits)) * scale + minimum
    return matrix


def random_groups(rows: int, cols: int, bits: Any) -> GroupedWeight:
    rng = np.random.default_rng((rows, cols, bits))
    return GroupedWeight(
        rng.integers(0, 2**bits, (rows, cols)).astype(np.uint8),
        rng.normal(0, 1, (rows, cols // 32)).astype(np.float16),
        rng.normal(0, 1, (rows, cols // 32)).astype(np.float16),
        bits=bits,
    )


class TestLayouts:
    @for_shapes
    @pytest.mark.parametrize("bits", [4, 8])
    def test_groups(self, rows: int, cols: int, bits: int) -> None:
        w = random_groups(rows, cols, bits)
        packed, scales = pack_codes(w.codes, bits), pack_scales(w)
        assert packed.shape == (-(-rows // 16), cols // 32, bits, 64)
        assert scales.shape == (-(-rows // 16), cols // 32, 2, 16)
        assert packed.dtype == np.uint8
        assert scales.dtype == np.float16
        assert packed.flags.c_contiguous
        assert scales.flags.c_contiguous
        for row in range(rows):
            for col in range(cols):
                assert unpacked_code(packed, row, col, bits) == w.codes[row, col]
                pair = scales[row // 16, col // 32, :, row % 16]
                assert pair.tolist() == [w.scale[row, col // 32], w.minimum[row, col // 32]]

    @for_shapes
    def test_dense(self, rows: int, cols: int) -> None:
        values = np.random.default_rng(rows).normal(0, 1, (rows, cols)).astype(np.float32)
        packed = pack_dense(values)
        assert packed.shape == (-(-rows // 16), cols, 16)
        assert packed.flags.c_contiguous
        for row in range(rows):
            np.testing.assert_array_equal(packed[row // 16, :, row % 16], values[row])

    def test_rows_that_fill_a_block_up_weigh_nothing(self) -> None:
        w = random_groups(17, 32, 8)
        assert not pack_codes(w.codes, 8)[1].reshape(1, 8, 16, 4)[:, :, 1:].any()
        assert not pack_scales(w)[1, :, :, 1:].any()
        assert not pack_dense(np.ones((17, 5), np.float32))[1, :, 1:].any()

    def test_stacking_goes_by_the_widest(self) -> None:
        four, eight = random_groups(3, 64, 4), random_groups(2, 64, 8)
        assert stack([four, four]).bits == 4
        both = stack([four, eight])
        assert both.bits == 8
        expected = np.concatenate([four.dequantize(), eight.dequantize()])
        np.testing.assert_array_equal(both.dequantize(), expected)


class TestQ4f32:
    def mlc(self, values: Floats) -> npt.NDArray[np.float64]:
        """MLC's group quantization, 4 bits and groups of 32, and back; its scale in float32."""
        grouped = values.reshape(len(values), -1, 32).astype(np.float64)
        scale = np.abs(grouped).max(axis=-1, keepdims=True) / 7
        codes = np.clip(np.round(grouped / scale) + 7, 0, 14)
        result: npt.NDArray[np.float64] = ((codes - 7) * scale).reshape(values.shape)
        return result

    def test_error_is_at_most_half_a_step(self) -> None:
        rng = np.random.default_rng(0)
        values = rng.normal(0, 1, (40, 320)).astype(np.float32)
        values *= rng.choice([1e-4, 0.02, 30, 8000], (40, 1)).astype(np.float32)
        w = q4f32_1.quantize(values)
        step = np.abs(values.reshape(40, -1, 32)).max(axis=-1, keepdims=True) / 7
        error = np.abs(w.dequantize() - values).reshape(40, -1, 32)
        # The scale itself is rounded to float16: by 2^-11, and 7 steps lie within a group.
        assert (error <= step * (0.5 + 7 * 2**-11)).all()

    def test_values_are_those_of_mlc(self) -> None:
        values = np.random.default_rng(1).normal(0, 0.05, (64, 256)).astype(np.float32)
        ours, theirs = q4f32_1.quantize(values).dequantize(), self.mlc(values)
        step = np.abs(values.reshape(64, -1, 32)).max(axis=-1).repeat(32, axis=1) / 7
        away = np.abs(ours - theirs) / step
        # Float16 of the scale moves a value by up to 7 * 2^-11 steps and a few across a tie.
        assert (away < 0.004).mean() > 0.995
        assert away.max() < 1.01

    def test_codes_are_symmetric(self) -> None:
        values = np.random.default_rng(2).normal(0, 1, (8, 64)).astype(np.float32)
        positive, negative = q4f32_1.quantize(values), q4f32_1.quantize(-values)
        np.testing.assert_array_equal(positive.dequantize(), -negative.dequantize())
        np.testing.assert_array_equal(positive.codes, 16 - negative.codes)
        assert positive.codes.max() == 15
        assert positive.codes.min() == 1

    def test_columns_are_filled_up_with_zeros(self) -> None:
        values = np.random.default_rng(3).normal(0, 1, (5, 77)).astype(np.float32)
        w = q4f32_1.quantize(values)
        assert w.codes.shape == (5, 96)
        assert not w.dequantize()[:, 77:].any()
        assert np.abs(w.dequantize()[:, :77] - values).max() < 0.5

    def test_zeros_stay_zeros(self) -> None:
        values = np.zeros((2, 64), np.float32)
        values[1, 40] = 5
        assert np.abs(q4f32_1.quantize(values).dequantize() - values).max() < 0.01
        assert not q4f32_1.quantize(values).dequantize()[values == 0].any()

    @pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e6])
    def test_what_a_scale_cannot_hold_is_refused(self, bad: float) -> None:
        values = np.ones((2, 64), np.float32)
        values[1, 3] = bad
        with pytest.raises(CheckpointError, match="not finite or too large"):
            q4f32_1.quantize(values)


@dataclass
class Weights:
    """As much of a checkpoint as a WeightBook asks for."""

    weights: Mapping[str, Weight]
    kind: str = "gguf"
    name: str = "sample"
    asked: list[str] = field(default_factory=list)

    def tensor_names(self) -> tuple[str, ...]:
        return tuple(self.weights)

    def bits(self, name: str) -> int | None:
        weight = self.weights[name]
        return weight.bits if isinstance(weight, GroupedWeight) else None

    def shape(self, name: str) -> tuple[int, ...]:
        return self.weights[name].shape

    def load(self, name: str) -> Weight:
        self.asked.append(name)
        return self.weights[name]

    def book(self, scheme: str) -> WeightBook:
        return WeightBook(cast("Checkpoint", self), scheme_named(scheme))


def packed_matrix(book: WeightBook, matrix: Matrix) -> Floats:
    """The matrix as the kernels will read it, checked against its parameters."""
    arrays = list(book.pack(matrix.parameters))
    for parameter, array in zip(matrix.parameters, arrays, strict=True):
        assert tuple(int(extent) for extent in parameter.shape) == array.shape
        assert parameter.dtype == array.dtype.name
    if matrix.storage == "dense":
        dense: Floats = arrays[0].transpose(0, 2, 1).reshape(-1, matrix.cols)[: matrix.rows]
        return dense
    codes, scales = arrays
    return unpacked(codes, scales, matrix.rows, 4 if matrix.storage == "grouped4" else 8)


class TestSchemes:
    @pytest.mark.parametrize(("kind", "bits"), [("Q4_0", 4), ("Q4_1", 4), ("Q8_0", 8)])
    def test_gguf_keeps_a_files_values(self, kind: str, bits: int, tmp_path: Path) -> None:
        """Bit for bit, as the gguf package dequantizes them."""
        originals = write_llama(tmp_path / "m.gguf", kind)
        checkpoint = GgufCheckpoint(tmp_path / "m.gguf")
        book = WeightBook(checkpoint, scheme_named("gguf"))
        names = [f"model.layers.1.mlp.{part}_proj.weight" for part in ("gate", "up")]
        matrix = book.matrix(2 * 96, 64, *names)
        assert matrix.storage == f"grouped{bits}"
        number = gguf.GGMLQuantizationType[kind]
        stored = [gguf.quants.quantize(originals[name], number) for name in names]
        expected = np.concatenate([gguf.quants.dequantize(s, number) for s in stored])
        np.testing.assert_array_equal(packed_matrix(book, matrix), expected)

    def test_gguf_with_groups_of_two_kinds(self) -> None:
        four, eight = random_groups(20, 64, 4), random_groups(3, 64, 8)
        book = Weights({"a": four, "b": eight}).book("gguf")
        matrix = book.matrix(23, 64, "a", "b")
        assert matrix.storage == "grouped8"
        expected = np.concatenate([four.dequantize(), eight.dequantize()])
        np.testing.assert_array_equal(packed_matrix(book, matrix), expected)

    def test_gguf_with_a_part_that_is_not_quantized(self) -> None:
        half = np.random.default_rng(0).normal(0, 1, (5, 64)).astype(np.float16)
        four = random_groups(20, 64, 4)
        book = Weights({"a": four, "b": DenseWeight(half)}).book("gguf")
        matrix = book.matrix(25, 64, "a", "b")
        assert matrix.storage == "dense"
        expected = np.concatenate([four.dequantize(), half.astype(np.float32)])
        np.testing.assert_array_equal(packed_matrix(book, matrix), expected)

    def test_gguf_of_other_checkpoints_is_refused(self) -> None:
        weights = Weights({"a": random_groups(16, 32, 4)}, kind="safetensors")
        with pytest.raises(CompileError, match="keeps a GGUF file's own, and sample is safetens"):
            weights.book("gguf").matrix(16, 32, "a")

    @pytest.mark.parametrize("scheme", ["q0f32", "q4f32_1"])
    def test_schemes_of_any_checkpoint(self, scheme: str) -> None:
        values = np.random.default_rng(0).normal(0, 1, (21, 77)).astype(ml_dtypes.bfloat16)
        book = Weights({"a": DenseWeight(values)}, kind="safetensors").book(scheme)
        result = packed_matrix(book, book.matrix(21, 77, "a"))
        error = np.abs(result[:, :77] - values.astype(np.float32)).max()
        assert error == 0 if scheme == "q0f32" else 0.05 < error < 0.3

    def test_names_and_defaults(self) -> None:
        assert default_scheme("gguf") == "gguf"
        assert default_scheme("safetensors") == "q4f32_1"
        assert set(SCHEMES) == {"gguf", "q0f32", "q4f32_1"}
        with pytest.raises(CompileError, match=r"unknown quantization 'q9'.*gguf, q0f32, q4f32_1"):
            scheme_named("q9")


class TestBook:
    def test_weights_come_in_the_order_asked_for_and_are_read_once(self) -> None:
        norm = DenseWeight(np.arange(64, dtype=np.float16))
        source = Weights({"m": random_groups(16, 64, 4), "n": norm, "o": random_groups(1, 32, 8)})
        book = source.book("gguf")
        first, second = book.matrix(16, 64, "m"), book.matrix(1, 32, "o")
        vector = book.vector(64, "n")
        order: list[nn.Parameter] = [
            first.parameters[1],
            vector,
            *second.parameters,
            first.parameters[0],
        ]
        arrays = list(book.pack(order))
        assert [a.dtype.name for a in arrays] == ["float16", "float32", "uint8", "float16", "uint8"]
        np.testing.assert_array_equal(arrays[1], np.arange(64, dtype=np.float32))
        assert source.asked == ["m", "n", "o"]

    @pytest.mark.parametrize("rows", [15, 17])
    def test_another_shape_than_the_configuration_says(self, rows: int) -> None:
        source = Weights({"m": random_groups(rows, 64, 4)})
        with pytest.raises(
            CheckpointError, match=rf"tensor 'm' of sample has shape \[{rows}, 64\]"
        ):
            source.book("gguf").matrix(16, 64, "m")
        assert not source.asked  # told without reading a weight

    def test_a_vector_of_another_length(self) -> None:
        book = Weights({"n": DenseWeight(np.ones(63, np.float32))}).book("gguf")
        with pytest.raises(CheckpointError, match=r"'n' of sample has shape \[63\].* says \[64\]"):
            book.vector(64, "n")

    def test_a_matrix_that_is_a_vector(self) -> None:
        book = Weights({"m": DenseWeight(np.ones(64, np.float32))}).book("q0f32")
        with pytest.raises(CheckpointError, match=r"has shape \[64\]"):
            book.matrix(64, 1, "m")

    def test_a_scalar_in_place_of_a_part(self) -> None:
        scalar = DenseWeight(np.ones((), np.float32))
        book = Weights({"m": random_groups(16, 64, 4), "s": scalar}).book("gguf")
        with pytest.raises(CheckpointError, match=r"tensor 's' of sample has shape \[\]"):
            book.matrix(16, 64, "m", "s")

    def test_a_tensor_that_is_missing(self, tmp_path: Path) -> None:
        write_llama(tmp_path / "m.gguf", "Q4_1")
        book = WeightBook(GgufCheckpoint(tmp_path / "m.gguf"), scheme_named("gguf"))
        with pytest.raises(CheckpointError, match=r"tensor 'absent' is missing from"):
            book.matrix(16, 64, "absent")
        with pytest.raises(CheckpointError, match=r"tensor 'absent' is missing from"):
            book.vector(64, "absent")
