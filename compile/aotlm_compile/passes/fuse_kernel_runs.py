"""Makes one function of the kernels between two attentions.

A decode step is short: the virtual machine's part of every call (arguments, an allocation for
each result) is time in which all threads but one wait. TVM's own fusion does the grouping; it
takes our kernels for opaque, so they are declared element-wise to it, which says no more than
that their loops may follow one another. The loops themselves stay as they are.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax as rx

_ELEMENT_WISE = 0  # relay.op.OpPattern.ELEMWISE


def fuse_kernel_runs(module: Any) -> Any:
    """tvm.IRModule -> tvm.IRModule."""
    for name, function in module.functions_items():
        if isinstance(function, tvm.tirx.PrimFunc):
            module.update_func(name, function.with_attr("op_pattern", _ELEMENT_WISE))
    module = rx.transform.FuseOps(fuse_opt_level=2)(module)
    module = rx.transform.FuseTIR()(module)
    for name, function in module.functions_items():
        if isinstance(function, tvm.tirx.PrimFunc):
            scheduled = function.without_attr("op_pattern").with_attr("tirx.is_scheduled", True)
            module.update_func(name, scheduled)
    return module
