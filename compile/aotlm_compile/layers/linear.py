"""Matrix products over packed weights, and rows of them: linear layers and embeddings."""

from __future__ import annotations

from tvm.relax.frontend import nn
from tvm.relax.frontend.nn import Tensor

from aotlm_compile.kernels.cpu import rows
from aotlm_compile.kernels.cpu.matmul_dense import matmul_dense
from aotlm_compile.kernels.cpu.matmul_grouped import matmul_grouped
from aotlm_compile.targets import CpuTarget

from .activation import Activation, Int8Activation
from .kernel_call import call, empty
from .weights import Matrix

# Activation rows that share one pass over a block of weights, as measured (docs/performance.md).
GROUPED_TILE = 8
DENSE_TILE = 8


class Linear(nn.Module):
    """y = x W^T, with W [outputs, inputs] packed; no bias."""

    def __init__(self, matrix: Matrix, target: CpuTarget) -> None:
        self.outputs, self.inputs, self.storage = matrix.rows, matrix.cols, matrix.storage
        self.weight = matrix.parameters[0]
        self.scales = matrix.parameters[1] if len(matrix.parameters) > 1 else None
        self.dot = target.level.dot

    def forward(self, x: Activation, residual: Tensor | None = None) -> Tensor:
        """x of n rows -> float32 [n, outputs], plus `residual` of that shape."""
        extra = [] if residual is None else [residual]
        name = f"matmul_{self.storage}_{self.outputs}x{self.inputs}"
        if isinstance(x, Int8Activation):
            bits = 4 if self.storage == "grouped4" else 8
            kernel = matmul_grouped(
                self.outputs, self.inputs, bits, bool(extra), self.dot, GROUPED_TILE
            )
            arguments = [x.codes, x.scales, self.weight, self.scales, *extra]
            return call(kernel, name, arguments, empty(x.codes.shape[0], self.outputs))
        kernel = matmul_dense(self.outputs, self.inputs, bool(extra), DENSE_TILE)
        return call(kernel, name, [x, self.weight, *extra], empty(x.shape[0], self.outputs))

    def embed(self, token_ids: Tensor) -> Tensor:
        """Rows of W by token id, int32 [n] -> float32 [n, inputs]: a token embedding."""
        result = empty(token_ids.shape[0], self.inputs)
        if self.storage == "dense":
            kernel = rows.embed_dense(self.outputs, self.inputs)
            return call(kernel, "embed", [token_ids, self.weight], result)
        kernel = rows.embed_grouped(
            self.outputs, self.inputs, 4 if self.storage == "grouped4" else 8
        )
        return call(kernel, "embed", [token_ids, self.weight, self.scales], result)


def take_rows(x: Tensor, which: Tensor) -> Tensor:
    """x float32 [n, features], which int32 [batch] -> float32 [batch, features]."""
    features = int(x.shape[1])
    return call(rows.take_rows(features), "take_rows", [x, which], empty(which.shape[0], features))
