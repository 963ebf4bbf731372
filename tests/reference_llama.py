"""The Llama forward pass in NumPy float32, written from the published architecture.

Shares no code with the compiler: logits of compiled models are checked against it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]


class _Weight(Protocol):
    def float32(self) -> Floats: ...


class _Checkpoint(Protocol):
    @property
    def config(self) -> Mapping[str, Any]: ...
    def tensor_names(self) -> tuple[str, ...]: ...
    def load(self, name: str) -> _Weight: ...


class ReferenceLlama:
    """A Llama that computes all logits of a sequence at once."""

    def __init__(self, config: Mapping[str, Any], weights: Mapping[str, Floats]) -> None:
        """`config` and the names of `weights` are Hugging Face's."""
        self.config = config
        self.weights = weights
        self.heads: int = config["num_attention_heads"]
        self.kv_heads: int = config["num_key_value_heads"]
        self.head_dim: int = config.get("head_dim") or config["hidden_size"] // self.heads
        self.frequencies = rotary_frequencies(config, self.head_dim)

    @classmethod
    def from_checkpoint(cls, checkpoint: _Checkpoint) -> ReferenceLlama:
        """With every weight of the checkpoint dequantized to float32."""
        weights = {name: checkpoint.load(name).float32() for name in checkpoint.tensor_names()}
        return cls(checkpoint.config, weights)

    def logits(self, token_ids: Sequence[int]) -> Floats:
        """float32 [num_tokens, vocab]: row i is about the token after position i."""
        x = self.weights["model.embed_tokens.weight"][np.asarray(token_ids, dtype=np.int64)]
        for layer in range(self.config["num_hidden_layers"]):
            x = x + self._attention(x, f"model.layers.{layer}.")
            x = x + self._mlp(x, f"model.layers.{layer}.")
        x = self._norm(x, "model.norm.weight")
        head = "lm_head.weight"
        if head not in self.weights:
            head = "model.embed_tokens.weight"
        return self._linear(x, head)

    def greedy(self, token_ids: Sequence[int], count: int) -> list[int]:
        """The `count` most likely tokens that follow, one after another."""
        ids = list(token_ids)
        for _ in range(count):
            ids.append(int(self.logits(ids)[-1].argmax()))
        return ids[len(token_ids) :]

    def _attention(self, x: Floats, prefix: str) -> Floats:
        num_tokens = x.shape[0]
        h = self._norm(x, prefix + "input_layernorm.weight")

        def heads(name: str) -> Floats:
            return self._linear(h, f"{prefix}self_attn.{name}.weight").reshape(
                num_tokens, -1, self.head_dim
            )

        q, k, v = self._rotate(heads("q_proj")), self._rotate(heads("k_proj")), heads("v_proj")
        group = self.heads // self.kv_heads
        k, v = k.repeat(group, axis=1), v.repeat(group, axis=1)
        scores = np.einsum("qhd,khd->hqk", q, k) * np.float32(self.head_dim**-0.5)
        future = np.triu(np.ones((num_tokens, num_tokens), dtype=bool), 1)
        scores = np.where(future, np.float32(-np.inf), scores)
        scores = np.exp(scores - scores.max(axis=-1, keepdims=True))
        scores /= scores.sum(axis=-1, keepdims=True)
        mixed = np.einsum("hqk,khd->qhd", scores, v).reshape(num_tokens, -1)
        return self._linear(mixed, prefix + "self_attn.o_proj.weight")

    def _mlp(self, x: Floats, prefix: str) -> Floats:
        h = self._norm(x, prefix + "post_attention_layernorm.weight")
        gate = self._linear(h, prefix + "mlp.gate_proj.weight")
        up = self._linear(h, prefix + "mlp.up_proj.weight")
        silu = gate / (1 + np.exp(-np.clip(gate, -80, 80)))
        return self._linear((silu * up).astype(np.float32), prefix + "mlp.down_proj.weight")

    def _norm(self, x: Floats, name: str) -> Floats:
        mean = (x * x).mean(axis=-1, keepdims=True) + np.float32(self.config["rms_norm_eps"])
        normalized: Floats = (x / np.sqrt(mean) * self.weights[name]).astype(np.float32)
        return normalized

    def _linear(self, x: Floats, name: str) -> Floats:
        y: Floats = x @ self.weights[name].T
        bias = self.weights.get(name.removesuffix("weight") + "bias")
        return y if bias is None else y + bias

    def _rotate(self, x: Floats) -> Floats:
        """Rotary embedding of [num_tokens, heads, head_dim], halves a half head apart."""
        angle = np.arange(x.shape[0])[:, None, None] * self.frequencies
        cos, sin = np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)
        a, b = x[..., : self.head_dim // 2], x[..., self.head_dim // 2 :]
        return np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)


def rotary_frequencies(config: Mapping[str, Any], head_dim: int) -> Doubles:
    """Radians a token for each pair of values: float64 [head_dim / 2]."""
    exponents = -np.arange(0, head_dim, 2, dtype=np.float64) / head_dim
    base: Doubles = np.power(float(config["rope_theta"]), exponents)
    scaling = config.get("rope_scaling")
    if not scaling:
        return base
    return _SCALINGS[scaling.get("rope_type", scaling.get("type"))](base, scaling)


def _linear_scaling(base: Doubles, scaling: Mapping[str, Any]) -> Doubles:
    return base / float(scaling["factor"])


def _llama3_scaling(base: Doubles, scaling: Mapping[str, Any]) -> Doubles:
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    waves_in_context = scaling["original_max_position_embeddings"] * base / (2 * math.pi)
    keep: Doubles = np.clip((waves_in_context - low) / (high - low), 0, 1)
    return base * (keep + (1 - keep) / float(scaling["factor"]))


_SCALINGS: dict[str, Callable[[Doubles, Mapping[str, Any]], Doubles]] = {
    "linear": _linear_scaling,
    "llama3": _llama3_scaling,
}
