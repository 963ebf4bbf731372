"""Blocks of 16 output rows, the unit in which packed matrices are laid out and computed."""
# fmt: off

from __future__ import annotations

from tvm.script import tirx as T

from aotlm_compile.kernels.cpu.vector import lanes

ROWS = 16  # output rows in a block: one vector


def blocks_of(outputs: int) -> int:
    """How many blocks of 16 rows hold `outputs` rows."""
    return -(-outputs // ROWS)


@T.inline
def store_block(outputs, residual, acc, i, row, extra, y, nb):  # type: ignore[no-untyped-def]
    """y[row, block nb] = acc[i] (float32 [count, 16]), plus extra[row] where there is a residual."""
    if outputs % ROWS == 0:
        if residual:
            y[row, lanes(nb * 16)] = extra[row, lanes(nb * 16)] + acc[i, lanes(0)]
        else:
            y[row, lanes(nb * 16)] = acc[i, lanes(0)]
    else:
        for r in T.serial(ROWS):
            if nb * 16 + r < outputs:
                if residual:
                    y[row, nb * 16 + r] = extra[row, nb * 16 + r] + acc[i, r]
                else:
                    y[row, nb * 16 + r] = acc[i, r]
