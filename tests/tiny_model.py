"""A Llama with random weights, small enough to compile in seconds: what the fast tests run on.

Two layers, hidden 64, 4 heads over 2 key/value heads, byte-level BPE of 320 tokens. The seed
fixes every weight, so two folders written with the same arguments are byte for byte equal.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' "
    "+ message['content'] + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "hidden_act": "silu",
    "vocab_size": 320,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "max_position_embeddings": 512,
    "tie_word_embeddings": True,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_DTYPES = {"F32": np.dtype("<f4"), "F16": np.dtype("<f2"), "BF16": np.dtype(ml_dtypes.bfloat16)}
_CORPUS = (
    "the quick brown fox jumps over the lazy dog and then there was nothing in the world "
    "that could stop what is said about this and that, where everything is as it was before"
)


def write_tiny_model(
    folder: Path, *, seed: int = 0, dtype: str = "F32", config: Mapping[str, Any] | None = None
) -> Path:
    """Write a Hugging Face folder; `config` overrides entries of CONFIG. Returns `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    full = {**CONFIG, **(config or {})}
    write_safetensors(folder / "model.safetensors", random_weights(full, seed), dtype)
    files: dict[str, Any] = {
        "config.json": full,
        "generation_config.json": {
            "bos_token_id": 1,
            "eos_token_id": [2, 0],
            "temperature": 0.7,
            "top_p": 0.9,
        },
        "tokenizer.json": json.loads(tiny_tokenizer().to_str()),
        "tokenizer_config.json": {
            "add_bos_token": False,
            "bos_token": "<|im_start|>",
            "eos_token": "<|im_end|>",
            "chat_template": CHAT_TEMPLATE,
        },
    }
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content), encoding="utf-8")
    return folder


def random_weights(config: Mapping[str, Any], seed: int) -> dict[str, npt.NDArray[np.float32]]:
    """Weights that keep activations near 1: float32, by Hugging Face name."""
    rng = np.random.default_rng(seed)
    hidden: int = config["hidden_size"]
    inner: int = config["intermediate_size"]
    queries = config["num_attention_heads"] * config["head_dim"]
    keys = config["num_key_value_heads"] * config["head_dim"]

    def matrix(rows: int, cols: int) -> npt.NDArray[np.float32]:
        values = rng.normal(0, math.sqrt(1 / cols), (rows, cols))
        return values.astype(np.float32)

    def norm() -> npt.NDArray[np.float32]:
        return rng.uniform(0.5, 1.5, hidden).astype(np.float32)

    embedding = rng.normal(0, 0.5, (config["vocab_size"], hidden)).astype(np.float32)
    weights = {"model.embed_tokens.weight": embedding}
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}."
        weights[prefix + "input_layernorm.weight"] = norm()
        weights[prefix + "self_attn.q_proj.weight"] = matrix(queries, hidden)
        weights[prefix + "self_attn.k_proj.weight"] = matrix(keys, hidden)
        weights[prefix + "self_attn.v_proj.weight"] = matrix(keys, hidden)
        weights[prefix + "self_attn.o_proj.weight"] = matrix(hidden, queries)
        weights[prefix + "post_attention_layernorm.weight"] = norm()
        weights[prefix + "mlp.gate_proj.weight"] = matrix(inner, hidden)
        weights[prefix + "mlp.up_proj.weight"] = matrix(inner, hidden)
        weights[prefix + "mlp.down_proj.weight"] = matrix(hidden, inner)
    weights["model.norm.weight"] = norm()
    if not config["tie_word_embeddings"]:
        weights["lm_head.weight"] = matrix(config["vocab_size"], hidden)
    return weights


def write_safetensors(
    path: Path, weights: Mapping[str, npt.NDArray[np.float32]], dtype: str = "F32"
) -> None:
    """Write one .safetensors file with every weight stored as `dtype`."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    stored, at = [], 0
    for name, values in weights.items():
        data = values.astype(_DTYPES[dtype]).tobytes()
        header[name] = {
            "dtype": dtype,
            "shape": list(values.shape),
            "data_offsets": [at, at + len(data)],
        }
        stored.append(data)
        at += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(stored))


def tiny_tokenizer() -> Tokenizer:
    """Special tokens 0 to 2, then 256 bytes, then the merges of a few English words."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=CONFIG["vocab_size"],
        min_frequency=1,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([_CORPUS], trainer)
    return tokenizer
