"""The book that says of what tensors of the checkpoint each parameter is made."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from tvm.relax.frontend import nn

from aotlm.errors import CheckpointError
from aotlm_compile.checkpoint.base import Checkpoint
from aotlm_compile.kernels.cpu.activation import groups_of
from aotlm_compile.kernels.cpu.blocks import ROWS, blocks_of
from aotlm_compile.quantize.packing import pack_codes, pack_dense, pack_scales, stack
from aotlm_compile.quantize.scheme import Scheme, Storage


@dataclass(frozen=True, slots=True)
class Matrix:
    """A packed matrix: its parameters, and the tensors it is made of, one below the other."""

    rows: int
    cols: int
    sources: tuple[str, ...]
    storage: Storage
    parameters: tuple[nn.Parameter, ...]  # (codes, scales) or (values,)


class WeightBook:
    """Makes the parameters of a model and packs their values later, in one place."""

    def __init__(self, checkpoint: Checkpoint, scheme: Scheme) -> None:
        self._checkpoint = checkpoint
        self._scheme = scheme
        self._matrices: list[Matrix] = []
        self._vectors: list[tuple[str, nn.Parameter]] = []

    def has(self, source: str) -> bool:
        """Whether the checkpoint has a tensor of that name."""
        return source in self._checkpoint.tensor_names()

    def matrix(self, rows: int, cols: int, *sources: str) -> Matrix:
        """Parameters for the matrix [rows, cols] made of `sources`, one below the other.

        Raises CheckpointError for a tensor that is missing or of another shape.
        """
        self._check_matrix(rows, cols, sources)
        storage = self._scheme.storage(self._checkpoint, sources)
        blocks, groups = blocks_of(rows), groups_of(cols)
        if storage == "dense":
            parameters: tuple[nn.Parameter, ...] = (nn.Parameter((blocks, cols, ROWS), "float32"),)
        else:
            vectors = 4 if storage == "grouped4" else 8
            parameters = (
                nn.Parameter((blocks, groups, vectors, 64), "uint8"),
                nn.Parameter((blocks, groups, 2, ROWS), "float16"),
            )
        matrix = Matrix(rows, cols, sources, storage, parameters)
        self._matrices.append(matrix)
        return matrix

    def vector(self, features: int, source: str) -> nn.Parameter:
        """A float32 parameter [features], stored as it is.

        Raises CheckpointError for a tensor that is missing or of another shape.
        """
        shape = self._checkpoint.shape(source)
        if shape != (features,):
            raise CheckpointError(
                f"tensor {source!r} of {self._checkpoint.name} has shape {list(shape)}; "
                f"the configuration says {[features]}"
            )
        parameter = nn.Parameter((features,), "float32")
        self._vectors.append((source, parameter))
        return parameter

    def pack(self, order: Sequence[nn.Parameter]) -> Iterator[npt.NDArray[Any]]:
        """Values of the parameters in `order`, one at a time.

        Raises CheckpointError for a tensor that cannot be read or stored.
        """
        owners: dict[int, Matrix | str] = {id(p): source for source, p in self._vectors}
        owners.update((id(p), m) for m in self._matrices for p in m.parameters)
        ready: dict[int, npt.NDArray[Any]] = {}
        for parameter in order:
            owner = owners[id(parameter)]
            if isinstance(owner, str):
                yield self._checkpoint.load(owner).float32()
                continue
            if id(parameter) not in ready:
                packed = self._pack_matrix(owner)
                ready.update(
                    (id(p), array) for p, array in zip(owner.parameters, packed, strict=True)
                )
            yield ready.pop(id(parameter))

    def _pack_matrix(self, matrix: Matrix) -> tuple[npt.NDArray[Any], ...]:
        loaded = [self._checkpoint.load(source) for source in matrix.sources]
        if matrix.storage == "dense":
            return (pack_dense(np.concatenate([w.float32() for w in loaded])),)
        grouped = stack([self._scheme.regroup(w) for w in loaded])
        bits = 4 if matrix.storage == "grouped4" else 8
        return pack_codes(grouped.codes, bits), pack_scales(grouped)

    def _check_matrix(self, rows: int, cols: int, sources: Sequence[str]) -> None:
        shapes = [self._checkpoint.shape(source) for source in sources]
        made = sum(shape[0] for shape in shapes if len(shape) == 2)
        for source, shape in zip(sources, shapes, strict=True):
            if len(shape) != 2 or shape[1] != cols or made != rows:
                raise CheckpointError(
                    f"tensor {source!r} of {self._checkpoint.name} has shape {list(shape)}; "
                    f"{' + '.join(sources)} should make {[rows, cols]}"
                )
