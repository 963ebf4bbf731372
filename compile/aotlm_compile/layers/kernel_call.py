"""Calling a kernel from a TVM module."""

from __future__ import annotations

from typing import Any

from tvm.relax.frontend.nn import Tensor, op


def empty(*shape: Any, dtype: str = "float32") -> Tensor:
    """The shape and dtype of a kernel's result."""
    return Tensor.placeholder(list(shape), dtype)


def call(kernel: Any, name: str, arguments: list[Any], result: Any) -> Any:
    """Runs `kernel` on `arguments`; `result` (one `empty` or a list of them) is what it fills.

    `name` is what profiles show. Kernels come out of caches, so that equal ones are one
    function in the library: without that, compiling takes minutes.
    """
    return op.tensor_ir_op(kernel, name, arguments, result)
