"""Llama 2, 3 and 3.x, and what follows its architecture: SmolLM, SmolLM2, TinyLlama.

Touvron et al. 2023: pre-norm blocks of grouped-query attention with rotary positions and a
SwiGLU feed-forward network, no biases.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tvm.relax.frontend import nn
from tvm.relax.frontend.nn import Tensor
from tvm.relax.frontend.nn.llm.kv_cache import PagedKVCache

from aotlm.errors import CheckpointError
from aotlm_compile.checkpoint.base import positive
from aotlm_compile.layers.activation import RMSNorm, activate, silu_mul
from aotlm_compile.layers.kv_cache import attention
from aotlm_compile.layers.linear import Linear
from aotlm_compile.layers.weights import WeightBook
from aotlm_compile.targets import CpuTarget

from .base import CausalLM, Family, ModelConfig
from .rotary import rotary_frequencies


@dataclass(frozen=True, slots=True)
class LlamaConfig(ModelConfig):
    """The keys of config.json that a Llama needs."""

    intermediate_size: int


class LlamaBlock(nn.Module):
    """Attention and feed-forward network, each with a norm before and a residual around."""

    def __init__(
        self, config: LlamaConfig, book: WeightBook, target: CpuTarget, layer: int
    ) -> None:
        c, path = config, f"model.layers.{layer}."
        self.config = config
        width = c.num_heads * c.head_dim
        qkv = (c.num_heads + 2 * c.num_kv_heads) * c.head_dim
        q, k, v = (f"{path}self_attn.{part}_proj.weight" for part in "qkv")
        gate, up = f"{path}mlp.gate_proj.weight", f"{path}mlp.up_proj.weight"
        self.qkv = Linear(book.matrix(qkv, c.hidden_size, q, k, v), target)
        self.output = Linear(
            book.matrix(c.hidden_size, width, f"{path}self_attn.o_proj.weight"), target
        )
        self.gate_up = Linear(book.matrix(2 * c.intermediate_size, c.hidden_size, gate, up), target)
        self.down = Linear(
            book.matrix(c.hidden_size, c.intermediate_size, f"{path}mlp.down_proj.weight"), target
        )
        self.attention_norm = RMSNorm(
            book.vector(c.hidden_size, f"{path}input_layernorm.weight"),
            c.norm_eps,
            self.qkv.storage,
        )
        self.mlp_norm = RMSNorm(
            book.vector(c.hidden_size, f"{path}post_attention_layernorm.weight"),
            c.norm_eps,
            self.gate_up.storage,
        )

    def forward(self, x: Tensor, kv_cache: PagedKVCache, layer: int) -> Tensor:
        """x float32 [n, hidden] -> the same."""
        c = self.config
        width = c.num_heads * c.head_dim
        qkv = self.qkv(self.attention_norm(x))
        heads = (c.num_heads, c.num_kv_heads, c.head_dim)
        mixed = attention(kv_cache, layer, qkv, heads, scale=c.head_dim**-0.5)
        x = self.output(activate(mixed, width, self.output.storage), residual=x)
        gate_up = self.gate_up(self.mlp_norm(x))
        hidden = silu_mul(gate_up, c.intermediate_size, self.down.storage)
        return self.down(hidden, residual=x)


def read_config(config: Mapping[str, Any]) -> LlamaConfig:
    """Raises CheckpointError for a missing key or a variant that computes something else."""
    where = "config.json"
    for key in ("attention_bias", "mlp_bias"):
        if config.get(key):
            raise CheckpointError(f"{where}: {key} is set; Llama with biases is not supported")
    if config.get("hidden_act", "silu") != "silu":
        raise CheckpointError(f"{where}: hidden_act {config['hidden_act']!r} is not supported")
    hidden = positive(config, "hidden_size", where)
    heads = positive(config, "num_attention_heads", where)
    kv_heads = (
        positive(config, "num_key_value_heads", where)
        if config.get("num_key_value_heads") is not None
        else heads
    )
    head_dim = (
        positive(config, "head_dim", where)
        if config.get("head_dim") is not None
        else hidden // heads
    )
    if heads % kv_heads or head_dim % 16:
        raise CheckpointError(
            f"{where}: {heads} heads over {kv_heads} key/value heads of size {head_dim} are not "
            "supported: heads must divide evenly and the size be a multiple of 16"
        )
    return LlamaConfig(
        vocab_size=positive(config, "vocab_size", where),
        hidden_size=hidden,
        num_layers=positive(config, "num_hidden_layers", where),
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        norm_eps=float(config.get("rms_norm_eps", 1e-6)),
        trained_context=positive(config, "max_position_embeddings", where),
        frequencies=rotary_frequencies(config, head_dim),
        intermediate_size=positive(config, "intermediate_size", where),
    )


def build(config: LlamaConfig, book: WeightBook, target: CpuTarget, context: int) -> CausalLM:
    """The whole model."""
    return CausalLM(
        config, book, target, context, lambda layer: LlamaBlock(config, book, target, layer)
    )


LLAMA = Family("llama", ("llama",), read_config, build)
