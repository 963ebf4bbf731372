"""Passes over a model's IR, one a file, in the order in which `run_passes` applies them."""

from __future__ import annotations

from typing import Any

from .fuse_kernel_runs import fuse_kernel_runs


def run_passes(module: Any) -> Any:
    """tvm.IRModule in and out; what follows is TVM's own pipeline."""
    return fuse_kernel_runs(module)
