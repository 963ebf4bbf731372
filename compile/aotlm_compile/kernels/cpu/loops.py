"""Loops over rows, shared by kernels that treat each row alone."""
# fmt: off

from __future__ import annotations

from tvm.script import tirx as T

PARALLEL_ROWS = 4


@T.inline
def for_rows(n, body):  # type: ignore[no-untyped-def]
    """body(m) for m in 0 .. n - 1; a few rows are done by one thread sooner than the pool is woken."""
    if n < PARALLEL_ROWS:
        for m in T.serial(n):
            body(m)
    else:
        for m in T.parallel(n):
            body(m)
