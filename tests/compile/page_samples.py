"""Pages of the CPU cache read and written in NumPy, by the words of `kernels.cpu.pages`.

float32 [pages, 2, kv_heads, 16, head_dim]: plane 1 holds values token by token; plane 0 keys,
feature d of token t at flat position d * 16 + t. A slot is page * 16 + token.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[Any]


def empty_pages(count: int, kv_heads: int, head_dim: int) -> Floats:
    """Pages that hold NaN: what nobody wrote must not be used."""
    return np.full((count, 2, kv_heads, 16, head_dim), np.nan, np.float32)


def write_slots(pages: Floats, slots: Ints, keys: Floats, values: Floats) -> None:
    """Put keys and values float32 [n, kv_heads, head_dim] into `slots`."""
    for slot, key, value in zip(slots.tolist(), keys, values, strict=True):
        page, token = divmod(slot, 16)
        for head in range(pages.shape[2]):
            flat = pages[page, 0, head].reshape(-1)
            flat[token::16] = key[head]
            pages[page, 1, head, token] = value[head]


def read_slots(pages: Floats, slots: Ints) -> tuple[Floats, Floats]:
    """Keys and values of `slots`: float32 [n, kv_heads, head_dim] each."""
    kv_heads, head_dim = pages.shape[2], pages.shape[4]
    keys = np.empty((len(slots), kv_heads, head_dim), np.float32)
    values = np.empty_like(keys)
    for i, slot in enumerate(slots.tolist()):
        page, token = divmod(slot, 16)
        keys[i] = pages[page, 0].reshape(kv_heads, -1)[:, token::16]
        values[i] = pages[page, 1, :, token]
    return keys, values
