"""Activations as the next matrix product wants them, and the layers that make them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

from tvm.relax.frontend import nn
from tvm.relax.frontend.nn import Tensor

from aotlm_compile.kernels.cpu import activation as kernels
from aotlm_compile.quantize.scheme import Storage

from .kernel_call import call, empty


@dataclass(frozen=True, slots=True)
class Int8Activation:
    """codes int8 [n, groups * 8, 4]; scales float32 [n, groups + outliers, 2].

    `kernels.cpu.activation` says what they mean.
    """

    codes: Tensor
    scales: Tensor


Activation: TypeAlias = Tensor | Int8Activation  # a Tensor is float32 [n, features]


def _int8(kernel: Any, name: str, arguments: list[Any], features: int) -> Int8Activation:
    n, groups = arguments[0].shape[0], kernels.groups_of(features)
    result = [
        empty(n, groups * 8, 4, dtype="int8"),
        empty(n, groups + kernels.outliers_of(features), 2),
    ]
    return Int8Activation(*call(kernel, name, arguments, result))


class RMSNorm(nn.Module):
    """RMSNorm whose result suits the storage of the weights that read it."""

    def __init__(self, weight: nn.Parameter, eps: float, readers: Storage) -> None:
        self.weight = weight
        self.features = int(weight.shape[0])
        self.eps = eps
        self.readers = readers

    def forward(self, x: Tensor) -> Activation:
        """x float32 [n, features]."""
        if self.readers == "dense":
            kernel = kernels.rms_norm(self.features, self.eps)
            return call(kernel, "rms_norm", [x, self.weight], empty(x.shape[0], self.features))
        kernel = kernels.rms_norm_quantize(self.features, self.eps)
        return _int8(kernel, "rms_norm_quantize", [x, self.weight], self.features)


def activate(x: Tensor, features: int, readers: Storage) -> Activation:
    """x float32 [n, features] for weights stored as `readers`."""
    if readers == "dense":
        return x
    return _int8(kernels.quantize(features), "quantize", [x], features)


def silu_mul(x: Tensor, features: int, readers: Storage) -> Activation:
    """x float32 [n, 2 * features] = gate, up -> silu(gate) * up for weights stored as `readers`."""
    if readers == "dense":
        return call(kernels.silu_mul(features), "silu_mul", [x], empty(x.shape[0], features))
    return _int8(kernels.silu_mul_quantize(features), "silu_mul_quantize", [x], features)
