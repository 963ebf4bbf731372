"""GGUF files written by the `gguf` package, for tests of our own reader."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt

from tests.tiny_model import CHAT_TEMPLATE, CONFIG, random_weights, tiny_tokenizer

_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def gguf_name(name: str) -> str:
    """The GGUF name of a Hugging Face tensor name."""
    module, _, part = name.rpartition(".")
    if module.startswith("model.layers."):
        _, _, layer, inner = module.split(".", 3)
        return f"blk.{layer}.{_NAMES[inner]}.{part}"
    return f"{_NAMES[module]}.{part}"


def permute(values: npt.NDArray[Any], heads: int) -> npt.NDArray[Any]:
    """Hugging Face's q/k row order -> GGUF's, as llama.cpp's converter does it."""
    rows = values.shape[0]
    split = values.reshape(heads, 2, rows // heads // 2, *values.shape[1:])
    return split.swapaxes(1, 2).reshape(values.shape)


def write_llama(
    path: Path,
    quantization: str = "F32",
    *,
    config: Mapping[str, Any] | None = None,
    extra: Callable[[gguf.GGUFWriter], None] | None = None,
    skip: tuple[str, ...] = (),
    seed: int = 0,
) -> dict[str, npt.NDArray[np.float32]]:
    """Write the tiny model as GGUF, its matrices quantized; returns the weights it started from.

    `extra` may add metadata or tensors; `skip` leaves Hugging Face tensor names out.
    """
    full = {**CONFIG, **(config or {})}
    kind = gguf.GGMLQuantizationType[quantization]
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("tiny")
    writer.add_block_count(full["num_hidden_layers"])
    writer.add_context_length(full["max_position_embeddings"])
    writer.add_embedding_length(full["hidden_size"])
    writer.add_feed_forward_length(full["intermediate_size"])
    writer.add_head_count(full["num_attention_heads"])
    writer.add_head_count_kv(full["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(full["rms_norm_eps"])
    writer.add_rope_freq_base(full["rope_theta"])
    writer.add_rope_dimension_count(full["head_dim"])
    add_tokenizer(writer)
    writer.add_chat_template(CHAT_TEMPLATE)
    weights = random_weights(full, seed)
    for name, values in weights.items():
        if name in skip:
            continue
        stored = values
        if ".q_proj." in name:
            stored = permute(values, full["num_attention_heads"])
        if ".k_proj." in name:
            stored = permute(values, full["num_key_value_heads"])
        if values.ndim == 1 or quantization == "F32":
            writer.add_tensor(gguf_name(name), stored)
        else:
            writer.add_tensor(gguf_name(name), gguf.quants.quantize(stored, kind), raw_dtype=kind)
    if extra is not None:
        extra(writer)
    finish(writer)
    return weights


def add_tokenizer(writer: gguf.GGUFWriter, pre: str = "gpt-2") -> None:
    """The vocabulary of `tests.tiny_model` as metadata."""
    model = tiny_tokenizer()
    vocabulary = sorted(model.get_vocab().items(), key=lambda item: item[1])
    merges = json.loads(model.to_str())["model"]["merges"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list([text for text, _ in vocabulary])
    writer.add_token_types([3 if index < 3 else 1 for _, index in vocabulary])
    writer.add_token_merges([" ".join(merge) for merge in merges])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_add_bos_token(False)


def finish(writer: gguf.GGUFWriter) -> None:
    """Write everything the writer holds."""
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
