"""TVM's paged KV cache with our kernels in every place it calls one.

The cache's runtime (pages, forks, ragged batches) is TVM's `vm.builtin.paged_attention_kv_cache`;
it takes each kernel as an argument, and so the layout of a page is ours (`kernels.cpu.pages`).
Token trees and sliding windows are not wired yet: their places hold no kernel, and the cache
refuses a request that needs one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
from tvm import relax as rx
from tvm.relax.frontend.nn import Tensor, op
from tvm.relax.frontend.nn.llm.kv_cache import AttnKind, PagedKVCache, RopeMode
from tvm.relax.frontend.nn.op import wrap_nested

from aotlm_compile.kernels.cpu import attention_decode, attention_prefill, pages, rope

from .kernel_call import call, empty


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """What the cache must know of a model's attention.

    `frequencies`: the rotary angle per position of each of the head_dim / 2 pairs of features,
    scaling applied. `context`: positions below it may occur.
    """

    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    frequencies: tuple[float, ...]
    context: int


class CpuPagedKVCache(PagedKVCache):
    """The cache object of a CPU library; `attention_with_fused_qkv` comes from TVM's class."""

    def __init__(
        self, shape: AttentionShape, sizes: tuple[Any, Any, Any, Any, Any], name: str = "kv_cache"
    ) -> None:
        """`sizes`: sequences, tokens in all, prefill chunk, page size, sliding window (0 or 1)."""
        heads, kv_heads, head_dim = shape.heads, shape.kv_heads, shape.head_dim
        frequencies = Tensor(_expr=rx.const(np.array(shape.frequencies), "float64"))
        table = call(
            rope.rotary_table(shape.context, head_dim // 2),
            "rotary_table",
            [frequencies],
            empty(shape.context, 2, head_dim // 2),
        )
        none = rx.Tuple([])
        arguments = [
            rx.ShapeExpr(list(sizes)),
            rx.ShapeExpr([0, shape.layers]),
            rx.prim_value(heads),
            rx.prim_value(kv_heads),
            rx.prim_value(head_dim),
            rx.prim_value(head_dim),
            rx.ShapeExpr([int(AttnKind.MHA)] * shape.layers),
            rx.prim_value(False),  # no transfer of keys and values between machines
            rx.prim_value(RopeMode.NORMAL),
            rx.prim_value(1),
            rx.prim_value(10000),  # rope scale and theta: unused, the table holds both
            table._expr,
            rx.op.zeros((), "float32"),
            _function(pages.append(kv_heads, head_dim), "kv_append"),
            none,  # append of MLA
            _kernel(attention_prefill.prefill_ragged(heads, kv_heads, head_dim), "prefill_ragged"),
            _kernel(attention_prefill.prefill_paged(heads, kv_heads, head_dim), "prefill_paged"),
            _kernel(attention_decode.decode_paged(heads, kv_heads, head_dim), "decode_paged"),
            none,  # sliding window, prefill
            none,  # sliding window, decode
            none,  # token tree against pages
            none,  # token tree against the step's own tokens
            none,  # MLA
            rx.Tuple([_function(attention_prefill.merge_states(heads, head_dim), "merge_states")]),
            _function(rope.split_rotary(heads, kv_heads, head_dim, shape.context), "split_rotary"),
            _function(pages.copy_single_page(kv_heads, head_dim), "copy_single_page"),
            _function(pages.debug_get_kv(shape.layers, kv_heads, head_dim), "debug_get_kv"),
            _function(pages.compact_copy(kv_heads, head_dim), "compact_copy"),
        ]
        super().__init__(
            _expr=rx.call_pure_packed(
                "vm.builtin.paged_attention_kv_cache_create", *arguments, ty_args=rx.AnyType()
            ),
            _name=name,
        )


def attention(
    kv_cache: PagedKVCache, layer: int, qkv: Tensor, shape: tuple[int, int, int], scale: float
) -> Tensor:
    """qkv float32 [n, (heads + 2 * kv_heads) * head_dim] -> float32 [n, heads * head_dim].

    `shape` is (heads, kv_heads, head_dim). Rotates, appends the keys and values to the cache and
    attends, for the sequences of the step under way.
    """
    heads, kv_heads, head_dim = shape
    n = qkv.shape[0]
    split = op.reshape(qkv, (n, heads + 2 * kv_heads, head_dim))
    # PagedKVCache.attention_with_fused_qkv does the same with two more copies of the shape.
    mixed = rx.call_dps_packed(
        "vm.builtin.attention_kv_cache_attention_with_fused_qkv",
        [
            kv_cache._expr,
            rx.prim_value(layer),
            rx.prim_value(tvm.tirx.const(scale, "float64")),
            split._expr,
        ],
        out_ty=rx.TensorType((n, heads, head_dim), "float32"),
    )
    return op.reshape(wrap_nested(mixed, name="attention"), (n, heads * head_dim))


def _function(kernel: Any, name: str) -> Any:
    return rx.BlockBuilder.current().add_func(kernel, name)


def _kernel(kernel: Any, name: str) -> Any:
    return rx.Tuple([tvm.ir.StringImm("tirx"), _function(kernel, name)])
