"""What every decoder-only family shares: the library's functions and its KV cache, said once.

A family file says only what its block computes and where its weights come from.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.relax.frontend import nn
from tvm.relax.frontend.nn import Tensor
from tvm.relax.frontend.nn.llm.kv_cache import PagedKVCache

from aotlm_compile.layers.activation import RMSNorm
from aotlm_compile.layers.kv_cache import AttentionShape, CpuPagedKVCache
from aotlm_compile.layers.linear import Linear, take_rows
from aotlm_compile.layers.weights import WeightBook
from aotlm_compile.targets import CpuTarget


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """What base and program must know of any model; a family adds its own fields."""

    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    norm_eps: float
    trained_context: int
    frequencies: tuple[float, ...]  # rotary angle per position, head_dim / 2 of them


class CausalLM(nn.Module):
    """Embedding, blocks, final norm and LM head behind the functions of abi version 1.

    A block takes hidden float32 [n, hidden], the cache and its layer, and returns hidden.
    """

    def __init__(
        self,
        config: ModelConfig,
        book: WeightBook,
        target: CpuTarget,
        context: int,
        make_block: Callable[[int], nn.Module],
    ) -> None:
        self.config = config
        self.context = context
        hidden, vocab = config.hidden_size, config.vocab_size
        self.embedding = Linear(book.matrix(vocab, hidden, "model.embed_tokens.weight"), target)
        self.blocks = nn.ModuleList([make_block(layer) for layer in range(config.num_layers)])
        # Tied embeddings: the head reads the embedding's weights, which exist once.
        self.head = None
        if book.has("lm_head.weight"):
            self.head = Linear(book.matrix(vocab, hidden, "lm_head.weight"), target)
        readers = (self.head or self.embedding).storage
        weight = book.vector(hidden, "model.norm.weight")
        self.norm = RMSNorm(weight, config.norm_eps, readers)

    def prefill(self, token_ids: Tensor, logit_positions: Tensor, kv_cache: PagedKVCache) -> Tensor:
        """int32 [tokens], int32 [batch] -> logits float32 [batch, vocab] of those positions."""
        x = self._hidden(token_ids, kv_cache)
        return self._logits(take_rows(x, logit_positions))

    def decode(self, token_ids: Tensor, kv_cache: PagedKVCache) -> Tensor:
        """int32 [batch], one token a sequence -> logits float32 [batch, vocab]."""
        return self._logits(self._hidden(token_ids, kv_cache))

    def create_kv_cache(
        self,
        max_batch_size: tirx.Var,
        max_total_seq_len: tirx.Var,
        prefill_chunk: tirx.Var,
        page_size: tirx.Var,
        sliding_window: tirx.Var,
    ) -> PagedKVCache:
        """A cache for so many sequences, tokens in all, and tokens a step."""
        c = self.config
        shape = AttentionShape(
            c.num_layers, c.num_heads, c.num_kv_heads, c.head_dim, c.frequencies, self.context
        )
        return CpuPagedKVCache(
            shape, (max_batch_size, max_total_seq_len, prefill_chunk, page_size, sliding_window)
        )

    def _hidden(self, token_ids: Tensor, kv_cache: PagedKVCache) -> Tensor:
        x = self.embedding.embed(token_ids)
        for layer, block in enumerate(self.blocks):
            x = block(x, kv_cache, layer)
        return x

    def _logits(self, x: Tensor) -> Tensor:
        head = self.head or self.embedding
        return head(self.norm(x))

    def spec(self) -> nn.spec.ModuleSpec:
        """Signatures for `export_tvm`."""
        packed = {"param_mode": "packed", "effect_mode": "none"}
        cache = nn.spec.Object(object_type=PagedKVCache)
        functions: dict[str, dict[str, Any]] = {
            "prefill": {
                "token_ids": nn.spec.Tensor(["tokens"], "int32"),
                "logit_positions": nn.spec.Tensor(["batch"], "int32"),
                "kv_cache": cache,
                "$": packed,
            },
            "decode": {
                "token_ids": nn.spec.Tensor(["batch"], "int32"),
                "kv_cache": cache,
                "$": packed,
            },
            "create_kv_cache": {
                "max_batch_size": int,
                "max_total_seq_len": int,
                "prefill_chunk": int,
                "page_size": int,
                "sliding_window": int,
                "$": {"param_mode": "none", "effect_mode": "none"},
            },
        }
        return nn.spec.ModuleSpec.from_raw(functions, self)


@dataclass(frozen=True, slots=True)
class Family:
    """A model family, as one file of this folder declares it.

    `read_config`: Hugging Face's config.json -> the family's config; raises CheckpointError.
    `build(config, book, target, context)`: the module.
    """

    name: str
    model_types: tuple[str, ...]
    read_config: Callable[[Mapping[str, Any]], ModelConfig]
    build: Callable[[Any, WeightBook, CpuTarget, int], CausalLM]
